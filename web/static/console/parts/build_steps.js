// The steps of a build as bands of a timeline, from the lines of its log.

/** @typedef {import("./time_axis.js").Band} Band */
/** @typedef {{timestamp: string, level: string, message: string}} Line */

const STEP = /^(fetching|resolving|reading|installing|creating|loading|deployed)\b/; // how the builder's own lines begin

/**
 * A step lasts from its line to that of the next step; `endedAt` is null while the build runs.
 * @param {Line[]} lines oldest first
 * @param {{id: string, number: number, status: string, created_at: string, endedAt: string | null}} revision
 * @returns {Band[]}
 */
export function stepsOf(lines, { id, number, status, created_at, endedAt }) {
  const starts = lines.filter(({ level, message }) => level === "INFO" && STEP.test(message));
  if (!starts.length) return [];
  const hasFailed = status.endsWith("FAILED") || status === "INTERRUPTED";
  const last = endedAt ?? (hasFailed ? (lines.at(-1)?.timestamp ?? null) : null);
  const band = (/** @type {Partial<Band>} */ more) => /** @type {Band} */ ({ parent: null, kind: "build_step", status: "success", detail: null, checkpoint_id: null, ...more });
  const steps = starts.filter(({ message }) => !message.startsWith("deployed")).map((line, at) => {
    const next = starts[at + 1]?.timestamp ?? last;
    const isLast = starts[at + 1] === undefined;
    return band({ id: `${id}/${at}`, parent: id, name: line.message, started_at: line.timestamp, ended_at: next, status: isLast && next === null ? "running" : isLast && hasFailed ? "error" : "success" });
  });
  const begun = starts[0].timestamp;
  const end = starts.find(({ message }) => message.startsWith("deployed"))?.timestamp ?? last;
  return [
    band({ id: `${id}/queue`, kind: "queue", name: "Waits for a builder", started_at: created_at, ended_at: begun < created_at ? created_at : begun }),
    band({ id, name: `Build of v${number}`, started_at: begun, ended_at: end, status: hasFailed ? "error" : end ? "success" : "running" }),
    ...steps,
  ];
}

/** The lines of a step. @param {Line[]} lines @param {Band} band */
export const linesOf = (lines, band) => lines.filter(({ timestamp }) => timestamp >= band.started_at && (band.ended_at === null || timestamp < band.ended_at || band.status === "error"));
