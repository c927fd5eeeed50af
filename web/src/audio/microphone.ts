// Microphone input as raw samples at 16 kHz.

import { Failure } from "../failure";

export const RATE = 16000;

export interface Microphone {
  /** Stops the recording. */
  stop(): void;
}

/** Records and passes the samples to `take`, a tenth of a second at a time. Raises a Failure. */
export async function listen(take: (samples: Float32Array) => void): Promise<Microphone> {
  if (!navigator.mediaDevices) {
    throw new Failure("refused", "Browsers allow the microphone only on https and localhost. Open this page at such an address, or drop a file");
  }
  let sound: MediaStream;
  try {
    sound = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true } });
  } catch (error) {
    const missing = error instanceof DOMException && error.name === "NotFoundError";
    throw new Failure("refused", missing ? "No microphone was found. Drop a file instead" : "The browser blocks the microphone for this page. Allow it in the address bar, and try again");
  }
  const context = new AudioContext({ sampleRate: RATE });
  const module = document.querySelector<HTMLMetaElement>('meta[name="recorder"]')!.content;
  await context.audioWorklet.addModule(module);
  const recorder = new AudioWorkletNode(context, "recorder");
  recorder.port.onmessage = (event: MessageEvent<Float32Array>) => take(event.data);
  context.createMediaStreamSource(sound).connect(recorder);
  return {
    stop: () => {
      for (const track of sound.getTracks()) track.stop();
      void context.close();
    },
  };
}

/** Converts samples to 16-bit integers, little-endian. */
export function packed(samples: Float32Array): Uint8Array<ArrayBuffer> {
  const view = new DataView(new ArrayBuffer(samples.length * 2));
  samples.forEach((sample, at) => view.setInt16(at * 2, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return new Uint8Array(view.buffer);
}

/** Makes a WAV file of samples. */
export function wav(samples: Float32Array): Blob {
  const data = packed(samples);
  const head = new DataView(new ArrayBuffer(44));
  const text = (at: number, word: string) => [...word].forEach((letter, index) => head.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  head.setUint32(4, 36 + data.length, true);
  text(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, RATE, true);
  head.setUint32(28, RATE * 2, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  text(36, "data");
  head.setUint32(40, data.length, true);
  return new Blob([head, data], { type: "audio/wav" });
}

/** Concatenates pieces of sound. */
export function joined(pieces: Float32Array[]): Float32Array {
  const whole = new Float32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
