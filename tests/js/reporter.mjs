// One line of JSON for each row, for the test that has started them.

export default async function* (events) {
  for await (const { type, data } of events) {
    if (data?.nesting !== 1) continue;
    if (type === "test:pass") yield JSON.stringify({ row: data.name, failure: null }) + "\n";
    if (type === "test:fail") {
      const cause = data.details.error.cause ?? data.details.error;
      yield JSON.stringify({ row: data.name, failure: cause.stack ?? String(cause) }) + "\n";
    }
  }
}
