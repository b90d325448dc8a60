// Schedules in words, without a browser: `tests/unit/web/test_console_schedule.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

const { inWords } = await import("../../../web/static/console/parts/schedule.js");

/** @param {Record<string, string | null>} expected */
function check(expected) {
  for (const [schedule, words] of Object.entries(expected)) assert.equal(inWords(schedule), words, schedule);
}

suite("schedule", () => {
  test("what is due many times a day", () => {
    check({
      "* * * * *": "Every minute",
      "*/5 * * * *": "Every 5 minutes",
      "0 * * * *": "Every hour",
      "@hourly": "Every hour",
      "15 * * * *": "At minute 15 of every hour",
      "0,30 * * * *": "At minutes 0 and 30 of every hour",
      "0 */2 * * *": "Every 2 hours",
      "*/10 9-17 * * 1-5": "Every 10 minutes from 09:00 to 17:50, Monday to Friday",
      "0 9-17 * * *": "Every hour from 09:00 to 17:00",
    });
  });

  test("what is due at times of the day", () => {
    check({
      "30 9 * * *": "Every day at 09:30",
      "30 9,17 * * *": "Every day at 09:30 and 17:30",
      "0 9 * * mon-fri": "Monday to Friday at 09:00",
      "0 9 * * 7": "Every Sunday at 09:00",
      "0 9 * * 5-7": "Friday to Sunday at 09:00",
      "0 0 * * 0,6": "Every Saturday and Sunday at 00:00",
      "@weekly": "Every Sunday at 00:00",
    });
  });

  test("what is due on dates", () => {
    check({
      "0 0 1 * *": "On day 1 of every month at 00:00",
      "0 0 1,15 * *": "On days 1 and 15 of every month at 00:00",
      "0 0 L * *": "On the last day of every month at 00:00",
      "0 0 1 1 *": "Every 1 January at 00:00",
      "0 9 * jan-mar mon": "Every Monday in January, February and March at 09:00",
      "0 9 13 * 5": "On day 13 of every month, and also every Friday at 09:00",
    });
  });

  test("seconds come last", () => {
    check({
      "* * * * * */10": "Every 10 seconds",
      "* * * * * *": "Every second",
      "0 12 * * * 30": "Every day at 12:00, 30 s past",
      "0 */5 * * * *": null,
    });
  });

  test("a step that does not divide its hour or day is not called regular", () => {
    check({ "*/40 * * * *": "At minutes 0 and 40 of every hour", "0 */10 * * *": "Every day at 00:00, 10:00 and 20:00" });
  });

  test("what has no short words, or is no schedule, has none", () => {
    check({
      "0 0 * * 1#2": null, "0 0 */2 * *": null, "0 0 1-7/2 * */3": null, "0 0 */10 * 1": null, "61 * * * *": null, "0 0 31": null,
      "": null, "every day": null, "5-1 * * * *": null, "*/0 * * * *": null, "<b> * * * *": null, "9999999999999 * * * *": null,
    });
  });
});
