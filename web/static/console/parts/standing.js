// The status of a deployment in words: whether it serves, and how its newest revision ended.

/**
 * The statuses to show for a deployment: its status, and that of its newest revision if another revision serves. If none
 * serves, only the status of the newest revision is shown, because READY means no more than that the deployment exists.
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
 * The props of `Standing` for a deployment's record. Every page that shows a status uses it, so that all pages agree.
 * @param {{status: string, active_revision_number: number | null, latest_revision_number: number | null, latest_revision_status: string | null}} record
 */
export const statusesOf = (record) => ({ status: record.status, serving: record.active_revision_number, newest: record.latest_revision_number, newestStatus: record.latest_revision_status });

/**
 * The revisions that get new runs.
 * @param {{revision_number: number, percent: number}[] | null | undefined} traffic
 * @param {number} serving
 */
export function servedInWords(traffic, serving) {
  if (!traffic || traffic.length < 2) return `v${serving}`;
  return traffic.map(({ revision_number: number, percent }) => `v${number} ${percent} %`).join(", ");
}
