// Letters and digits in the alphabets of mathematics. MathML Core, all that browsers know, has no other way to ask for a
// bold, script or double-struck letter than the character itself.

// The code points of A, a and 0 in each alphabet; 0: it has none.
const STARTS: Record<string, [number, number, number]> = {
  "bold": [0x1d400, 0x1d41a, 0x1d7ce],
  "italic": [0x1d434, 0x1d44e, 0],
  "bold-italic": [0x1d468, 0x1d482, 0],
  "script": [0x1d49c, 0x1d4b6, 0],
  "bold-script": [0x1d4d0, 0x1d4ea, 0],
  "fraktur": [0x1d504, 0x1d51e, 0],
  "double-struck": [0x1d538, 0x1d552, 0x1d7d8],
  "bold-fraktur": [0x1d56c, 0x1d586, 0],
  "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  "bold-sans-serif": [0x1d5d4, 0x1d5ee, 0x1d7ec],
  "sans-serif-italic": [0x1d608, 0x1d622, 0],
  "sans-serif-bold-italic": [0x1d63c, 0x1d656, 0],
  "monospace": [0x1d670, 0x1d68a, 0x1d7f6],
};
// Of Α and α.
const GREEK: Record<string, [number, number]> = { "bold": [0x1d6a8, 0x1d6c2], "bold-italic": [0x1d71c, 0x1d736] };
// Letters that Unicode had before it got the alphabets.
const ELSEWHERE: Record<string, Record<string, string>> = {
  "italic": { h: "ℎ" },
  "script": { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  "fraktur": { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
};

/** Returns a text in the alphabet that MathML 3 calls `variant`; what the alphabet lacks stays as it is. */
export function inAlphabet(text: string, variant: string): string {
  const starts = STARTS[variant];
  return starts ? [...text].map((letter) => ELSEWHERE[variant]?.[letter] ?? moved(letter, starts, GREEK[variant])).join("") : text;
}

function moved(letter: string, [upper, lower, digit]: [number, number, number], greek?: [number, number]): string {
  const code = letter.codePointAt(0)!;
  if (letter >= "A" && letter <= "Z") return String.fromCodePoint(upper + code - 0x41);
  if (letter >= "a" && letter <= "z") return String.fromCodePoint(lower + code - 0x61);
  if (digit && letter >= "0" && letter <= "9") return String.fromCodePoint(digit + code - 0x30);
  if (greek && letter >= "Α" && letter <= "Ω") return String.fromCodePoint(greek[0] + code - 0x391);
  if (greek && letter >= "α" && letter <= "ω") return String.fromCodePoint(greek[1] + code - 0x3b1);
  return letter;
}
