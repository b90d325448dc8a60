// Two lists side by side: equal items stand in the same row.

const MOST = 500; // items of each list that are compared; their product is the number of steps

/**
 * A row of two lists. A side without an item is undefined.
 * @template T
 * @typedef {{original: T | undefined, replay: T | undefined, isSame: boolean}} Row
 */

/**
 * The rows of two lists. The rows between equal items pair the others in their order.
 * @template T
 * @param {T[]} original @param {T[]} replay @param {(item: T) => string} keyOf items with the same key are equal
 * @returns {Row<T>[]}
 */
export function aligned(original, replay, keyOf) {
  const [first, second] = [original.slice(0, MOST), replay.slice(0, MOST)];
  const [keys, others] = [first.map(keyOf), second.map(keyOf)];
  const lengths = lengthsOf(keys, others);
  /** @type {Row<T>[]} */
  const rows = [];
  let one = 0, other = 0, isSame = false;
  while (one < first.length || other < second.length) {
    const start = [one, other];
    while (one < first.length && other < second.length && keys[one] !== others[other]) {
      if (lengths[one + 1][other] >= lengths[one][other + 1]) one++;
      else other++;
    }
    isSame = one < first.length && other < second.length;
    if (!isSame) [one, other] = [first.length, second.length];
    addPairs(start, [one, other]);
    if (isSame) rows.push({ original: first[one++], replay: second[other++], isSame: true });
  }
  return rows;

  /** @param {number[]} from @param {number[]} to */
  function addPairs([from, fromOther], [to, toOther]) {
    for (let at = 0; at < Math.max(to - from, toOther - fromOther); at++) {
      rows.push({ original: from + at < to ? first[from + at] : undefined, replay: fromOther + at < toOther ? second[fromOther + at] : undefined, isSame: false });
    }
  }
}

/** The length of the longest common subsequence from each pair of positions on. @param {string[]} keys @param {string[]} others */
function lengthsOf(keys, others) {
  const lengths = Array.from({ length: keys.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let one = keys.length - 1; one >= 0; one--) {
    for (let other = others.length - 1; other >= 0; other--) {
      lengths[one][other] = keys[one] === others[other] ? lengths[one + 1][other + 1] + 1 : Math.max(lengths[one + 1][other], lengths[one][other + 1]);
    }
  }
  return lengths;
}
