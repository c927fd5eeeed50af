// An image to edit: the painted area is redrawn.

import { useEffect, useRef, useState } from "preact/hooks";

interface Props {
  source: string;
  /** The mask to begin with. */
  mask: Blob | null;
  /** Called with each changed mask; null if nothing is painted. */
  onMask: (mask: Blob | null) => void;
}

const PAINT = "#d81b60";
const STEP = 0.04; // of the width, for each press of an arrow key

export function MaskEditor({ source, mask, onMask }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [broken, setBroken] = useState(false);
  const [size, setSize] = useState(15); // percent of the width
  const [cursor, setCursor] = useState({ x: 0.5, y: 0.5 });
  const painted = useRef<{ x: number; y: number } | null>(null); // the last position of the pointer while it paints
  useEffect(() => {
    const image = new Image();
    image.onload = () => {
      if (!canvas.current) return;
      canvas.current.width = image.naturalWidth;
      canvas.current.height = image.naturalHeight;
      if (mask) void unmask(mask, canvas.current);
    };
    image.onerror = () => setBroken(true);
    setBroken(false);
    image.src = source;
  }, [source]);
  const paint = (x: number, y: number) => {
    const { width, height } = canvas.current!;
    const pen = canvas.current!.getContext("2d")!;
    const from = painted.current ?? { x, y };
    pen.strokeStyle = PAINT;
    pen.lineWidth = (size / 100) * width;
    pen.lineCap = "round";
    pen.beginPath();
    pen.moveTo(from.x * width, from.y * height);
    pen.lineTo(x * width, y * height);
    pen.stroke();
    // Canvases draw no line of length 0.
    pen.fillStyle = pen.strokeStyle;
    pen.beginPath();
    pen.arc(x * width, y * height, pen.lineWidth / 2, 0, Math.PI * 2);
    pen.fill();
  };
  const tell = () => maskOf(canvas.current!).then(onMask);
  const at = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    paint(x, y);
    painted.current = { x, y };
  };
  const clear = () => {
    canvas.current!.getContext("2d")!.clearRect(0, 0, canvas.current!.width, canvas.current!.height);
    onMask(null);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    const move = moves[event.key];
    if (move) setCursor({ x: within(cursor.x + move[0]), y: within(cursor.y + move[1]) });
    else if (event.key === " ") {
      paint(cursor.x, cursor.y);
      void tell();
    } else return;
    event.preventDefault();
  };
  if (broken) return <p class="note bad" role="alert">The browser cannot read this file as an image. Choose a PNG, JPEG or WebP file.</p>;
  return (
    <div class="masker">
      <div class="layers">
        <img src={source} alt="Image to edit" />
        <canvas ref={canvas} tabIndex={0} role="application" aria-label="Mask: paint the area to redraw. Arrow keys move the brush, the space bar paints."
          onKeyDown={onKeyDown}
          onPointerDown={(event) => { canvas.current!.setPointerCapture(event.pointerId); at(event); }}
          onPointerMove={(event) => painted.current && at(event)}
          onPointerUp={() => { painted.current = null; void tell(); }} />
        <span class="brush" aria-hidden="true" style={{ left: `${cursor.x * 100}%`, top: `${cursor.y * 100}%`, width: `${size}%` }} />
      </div>
      <div class="row">
        <label class="inline">Brush size <input type="range" min={2} max={60} value={size} onInput={(event) => setSize(Number(event.currentTarget.value))} /></label>
        <button type="button" onClick={clear}>Clear mask</button>
      </div>
    </div>
  );
}

/** Makes the mask: transparent where painted, opaque elsewhere; null if nothing is painted. */
async function maskOf(painted: HTMLCanvasElement): Promise<Blob | null> {
  const { width, height } = painted;
  const pixels = painted.getContext("2d")!.getImageData(0, 0, width, height).data;
  if (!pixels.some((value, index) => index % 4 === 3 && value > 0)) return null;
  const mask = document.createElement("canvas");
  mask.width = width;
  mask.height = height;
  const pen = mask.getContext("2d")!;
  pen.fillRect(0, 0, width, height);
  pen.globalCompositeOperation = "destination-out";
  pen.drawImage(painted, 0, 0);
  return new Promise((resolve) => mask.toBlob(resolve, "image/png"));
}

/** Paints what a mask leaves transparent: the inverse of `maskOf`. */
async function unmask(mask: Blob, canvas: HTMLCanvasElement): Promise<void> {
  const opaque = await createImageBitmap(mask);
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = PAINT;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.globalCompositeOperation = "destination-out";
  pen.drawImage(opaque, 0, 0);
  pen.globalCompositeOperation = "source-over";
}

function within(share: number): number {
  return Math.max(0, Math.min(1, share));
}
