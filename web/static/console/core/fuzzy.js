// Fuzzy search over short texts: every word of the query must occur in an item, if need be only as letters in their order.

/** @typedef {{label: string, keywords?: string[]}} Searchable */
/** @typedef {[number, number]} Range first and last+1 index of matching letters in the label */

const LONGEST = 300; // characters of a text that are searched
const IN_LABEL = 100, AT_WORD = 30, AT_START = 20, IN_KEYWORD = 60, AT_END_OF_KEYWORD = 30, SCATTERED = 40;

/**
 * Match a query with an item. A word that occurs in the label counts most, then one in a keyword, then scattered letters of the label.
 * Returns the score and the matching ranges of the label, or null.
 * @param {string} query @param {Searchable} item
 * @returns {{score: number, ranges: Range[]} | null}
 */
export function match(query, { label, keywords = [] }) {
  const text = label.slice(0, LONGEST).toLowerCase();
  let score = 0;
  /** @type {Range[]} */
  const ranges = [];
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const found = inLabel(word, text) ?? inKeywords(word, keywords) ?? scattered(word, text);
    if (!found) return null;
    score += found.score;
    ranges.push(...found.ranges);
  }
  return { score: score - Math.min(text.length, 50) / 10, ranges: merged(ranges) };
}

/** @param {string} word @param {string} text */
function inLabel(word, text) {
  const starts = [...text.matchAll(new RegExp(escaped(word), "g"))].map(({ index }) => index);
  if (!starts.length) return null;
  const at = starts.find((index) => isWordStart(text, index)) ?? starts[0];
  const score = IN_LABEL + (isWordStart(text, at) ? AT_WORD : 0) + (at === 0 ? AT_START : 0);
  return { score, ranges: [/** @type {Range} */ ([at, at + word.length])] };
}

/** @param {string} word @param {string[]} keywords */
function inKeywords(word, keywords) {
  const found = keywords.map((keyword) => keyword.slice(0, LONGEST).toLowerCase()).filter((keyword) => keyword.includes(word));
  if (!found.length) return null;
  return { score: IN_KEYWORD + (found.some((keyword) => keyword.endsWith(word)) ? AT_END_OF_KEYWORD : 0), ranges: [] };
}

/** Find the letters of a word in their order; the first one must begin a word of the text. @param {string} word @param {string} text */
function scattered(word, text) {
  if (word.length < 2) return null;
  for (let start = text.indexOf(word[0]); start >= 0; start = text.indexOf(word[0], start + 1)) {
    if (!isWordStart(text, start)) continue;
    /** @type {Range[]} */
    const ranges = [];
    let at = start - 1;
    for (const letter of word) {
      at = text.indexOf(letter, at + 1);
      if (at < 0) break;
      ranges.push([at, at + 1]);
    }
    const gaps = at - start + 1 - word.length;
    if (at >= 0 && gaps <= word.length + 2) return { score: SCATTERED - gaps, ranges };
  }
  return null;
}

/** @param {string} text @param {number} at */
const isWordStart = (text, at) => at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);

/** @param {string} text */
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** Ranges in their order, those that touch as one. @param {Range[]} ranges @returns {Range[]} */
function merged(ranges) {
  /** @type {Range[]} */
  const result = [];
  for (const [from, to] of ranges.sort(([one], [other]) => one - other)) {
    const last = result.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else result.push([from, to]);
  }
  return result;
}

/**
 * The items that match, best first; `bonus` raises the score of an item.
 * @template {Searchable} T
 * @param {string} query @param {T[]} items @param {(item: T) => number} [bonus]
 * @returns {{item: T, score: number, ranges: Range[]}[]}
 */
export function ranked(query, items, bonus = () => 0) {
  const found = items.flatMap((item) => {
    const result = match(query, item);
    return result ? [{ item, score: result.score + bonus(item), ranges: result.ranges }] : [];
  });
  return found.sort((one, other) => other.score - one.score);
}
