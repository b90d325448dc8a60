// The suite is written with Vitest's globals. A thread shares the socket of its process. Titles are not cut off.

export default {
  test: {
    globals: true, pool: "threads", fileParallelism: false, reporters: ["json"], chaiConfig: { truncateThreshold: 0 },
  },
};
