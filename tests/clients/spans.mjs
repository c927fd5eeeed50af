// Whether phrases or words follow each other, inside of a sound.
import assert from "node:assert/strict";

const ROUNDING = 0.01; // seconds

export function checkSpans(spans, seconds) {
  assert.ok(spans.length > 0);
  let before = 0;
  for (const { start, end } of spans) {
    assert.ok(before <= start && start <= end && end <= seconds + ROUNDING, JSON.stringify(spans));
    before = start;
  }
}
