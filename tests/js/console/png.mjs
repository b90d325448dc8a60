// A picture of a page with at most 256 colours, which takes a third of the room: the colours that most of it has stay as they are, each
// other becomes the nearest of these.

import { crc32, deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
const COLOURS = 256;
const RGB = 2, INDEXED = 3, RGBA = 6;

/** @param {Buffer} png of eight bits a channel, as browsers take them @returns {Buffer} */
export function reduced(png) {
  const { width, height, channels, rows } = decoded(png);
  const counts = new Map();
  const colours = new Uint32Array(width * height);
  for (let at = 0; at < colours.length; at++) {
    const [red, green, blue] = rows.subarray(at * channels, at * channels + 3);
    colours[at] = (red << 16) | (green << 8) | blue;
    counts.set(colours[at], (counts.get(colours[at]) ?? 0) + 1);
  }
  const palette = [...counts].sort(([one, more], [other, less]) => less - more || one - other).slice(0, COLOURS).map(([colour]) => colour);
  const indexes = new Map(palette.map((colour, index) => [colour, index]));
  const lines = Buffer.alloc((width + 1) * height); // each begins with its filter: none
  for (let at = 0; at < colours.length; at++) {
    const colour = colours[at];
    if (!indexes.has(colour)) indexes.set(colour, nearest(palette, colour));
    lines[at + Math.floor(at / width) + 1] = indexes.get(colour);
  }
  const head = Buffer.from(png.subarray(16, 29));
  head[9] = INDEXED;
  const table = Buffer.from(palette.flatMap(parts));
  return Buffer.concat([SIGNATURE, chunk("IHDR", head), chunk("PLTE", table), chunk("IDAT", deflateSync(lines, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}

const parts = (/** @type {number} */ colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];

/** @param {number[]} palette @param {number} colour */
function nearest(palette, colour) {
  const [red, green, blue] = parts(colour);
  const distances = palette.map((other) => {
    const [r, g, b] = parts(other);
    return (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
  });
  return distances.indexOf(Math.min(...distances));
}

/** @param {Buffer} png */
function decoded(png) {
  const packed = [];
  for (let at = 8; at < png.length; at += png.readUInt32BE(at) + 12) {
    if (png.toString("latin1", at + 4, at + 8) === "IDAT") packed.push(png.subarray(at + 8, at + 8 + png.readUInt32BE(at)));
  }
  const [width, height, kind] = [png.readUInt32BE(16), png.readUInt32BE(20), png[25]];
  if (png[24] !== 8 || ![RGB, RGBA].includes(kind) || png[28] !== 0) throw new Error("not a picture of a browser");
  const channels = kind === RGB ? 3 : 4;
  return { width, height, channels, rows: unfiltered(inflateSync(Buffer.concat(packed)), width * channels, height, channels) };
}

/** The bytes of the lines; each was told by what is left of it and above it. @param {Buffer} data @param {number} stride @param {number} height @param {number} channels */
function unfiltered(data, stride, height, channels) {
  const rows = Buffer.alloc(stride * height);
  for (let line = 0; line < height; line++) {
    const filter = data[line * (stride + 1)];
    for (let at = 0; at < stride; at++) {
      const here = line * stride + at;
      const left = at >= channels ? rows[here - channels] : 0;
      const above = line ? rows[here - stride] : 0;
      const corner = line && at >= channels ? rows[here - stride - channels] : 0;
      rows[here] = data[line * (stride + 1) + 1 + at] + [0, left, above, (left + above) >> 1, paeth(left, above, corner)][filter];
    }
  }
  return rows;
}

/** @param {number} left @param {number} above @param {number} corner */
function paeth(left, above, corner) {
  const [a, b, c] = [Math.abs(above - corner), Math.abs(left - corner), Math.abs(left + above - 2 * corner)];
  if (a <= b && a <= c) return left;
  return b <= c ? above : corner;
}

/** @param {string} kind @param {Buffer} data */
function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind, "latin1"), data]);
  const size = Buffer.alloc(4), sum = Buffer.alloc(4);
  size.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([size, body, sum]);
}
