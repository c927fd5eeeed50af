// What a picture's file says of itself.
const PNG = Buffer.from("89504e470d0a1a0a", "hex");

/** png, jpeg or webp. */
export function kindOf(data) {
  if (data.subarray(0, PNG.length).equals(PNG)) return "png";
  if (data.readUIntBE(0, 3) === 0xffd8ff) return "jpeg";
  return data.toString("latin1", 8, 12) === "WEBP" ? "webp" : "";
}

/** Width and height of a PNG. */
export function sizeOf(data) {
  return [data.readUInt32BE(16), data.readUInt32BE(20)];
}
