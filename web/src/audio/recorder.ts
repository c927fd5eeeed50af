// Audio worklet: runs in the browser's audio thread and forwards microphone input, a tenth of a second at a time.

declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}
declare function registerProcessor(name: string, processor: unknown): void;
declare const sampleRate: number;

class Recorder extends AudioWorkletProcessor {
  private held = new Float32Array(Math.round(sampleRate / 10));
  private filled = 0;

  process(inputs: Float32Array[][]): boolean {
    const channels = inputs[0] ?? [];
    for (let at = 0; at < (channels[0]?.length ?? 0); at += 1) {
      this.held[this.filled] = channels.reduce((sum, channel) => sum + channel[at]!, 0) / channels.length;
      this.filled += 1;
      if (this.filled === this.held.length) {
        this.port.postMessage(this.held.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
