// How a deployment stands: whether it serves, and what became of its newest revision.

/**
 * The statuses to show of a deployment: its own, and its newest revision's where another one serves. While none serves, its
 * newest revision's alone: READY means that the deployment exists.
 * @param {{status: string, serving: number | null, newest: number | null, newestStatus: string | null}} deployment
 * @returns {{status: string, title?: string}[]}
 */
export function standingOf({ status, serving, newest, newestStatus }) {
  const isNewer = newestStatus !== null && newestStatus !== "DEPLOYED" && newest !== serving;
  const ofNewest = isNewer ? [{ status: newestStatus, title: `v${newest}` }] : [];
  const isLeaving = status.startsWith("AWAITING");
  if (serving !== null || isLeaving || !isNewer) return [{ status }, ...ofNewest];
  return ofNewest;
}

/**
 * The revisions that get new runs.
 * @param {{revision_number: number, percent: number}[] | null | undefined} traffic
 * @param {number} serving
 */
export function servedInWords(traffic, serving) {
  if (!traffic || traffic.length < 2) return `v${serving}`;
  return traffic.map(({ revision_number: number, percent }) => `v${number} ${percent} %`).join(", ");
}
