// The schedule of a cron in words, for common patterns. Other schedules are shown as the expression.

/** @typedef {{every: number | null, values: number[], all: boolean, isStarred?: boolean}} Part  the values that one field of an expression allows */

const ALIASES = {
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
  "@monthly": "0 0 1 * *",
  "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@hourly": "0 * * * *",
};
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June"],
  ...["July", "August", "September", "October", "November", "December"],
];
const MOST_TIMES = 6; // times of a day that are listed one by one
const MOST_LISTED = 9;
const LAST_DAY = 32;

/**
 * A schedule in English; null if it has no short description.
 * @param {string} schedule
 * @returns {string | null}
 */
export function inWords(schedule) {
  const trimmed = schedule.trim().toLowerCase();
  const fields = (/** @type {Record<string, string>} */ (ALIASES)[trimmed] ?? trimmed).split(/\s+/);
  if (fields.length !== 5 && fields.length !== 6) return null;
  const [minute, hour, day, month, weekday, second] = [
    parsed(fields[0], 0, 59),
    parsed(fields[1], 0, 23),
    fields[2] === "l" ? { every: null, values: [LAST_DAY], all: false } : parsed(fields[2], 1, 31),
    parsed(fields[3], 1, 12, MONTHS),
    parsed(fields[4], 0, 7, DAYS),
    parsed(fields[5] ?? "0", 0, 59),
  ];
  if (!minute || !hour || !day || !month || !weekday || !second) return null;
  const time = timeInWords(minute, hour, second);
  const days = daysInWords(day, month, weekday);
  if (time === null || days === null) return null;
  return capital(joined(time, days));
}

/**
 * @param {{text: string, isTime: boolean}} time
 * @param {string} days
 */
function joined(time, days) {
  if (!time.isTime) return days === "every day" ? time.text : `${time.text}, ${days}`;
  return `${days} ${time.text}`;
}

/**
 * The times within a day.
 * @param {Part} minute
 * @param {Part} hour
 * @param {Part} second
 * @returns {{text: string, isTime: boolean} | null}
 */
function timeInWords(minute, hour, second) {
  if (!minute.every && minute.values.length > MOST_LISTED) return null;
  if (second.all || second.every || second.values.length > 1) return secondsInWords(minute, hour, second);
  const [at] = second.values;
  const past = at ? `, ${at} s past` : "";
  const times = timesOf(minute, hour);
  if (times) return { text: `at ${list(times)}${past}`, isTime: true };
  const minutes = minutesInWords(minute);
  if (hour.all) return { text: `${minutes ?? `at minutes ${list(minute.values)} of every hour`}${past}`, isTime: false };
  if (minute.values.length === 1 && hour.every) {
    const from = minute.values[0] ? `, at minute ${minute.values[0]}` : "";
    return { text: `every ${hour.every} hours${from}${past}`, isTime: false };
  }
  const hours = hoursInWords(hour, minute.all ? 59 : minute.values[minute.values.length - 1]);
  if (hours === null) return null;
  return { text: `${minutes ?? `at minutes ${list(minute.values)}`} ${hours}${past}`, isTime: false };
}

/**
 * @param {Part} minute
 * @param {Part} hour
 * @param {Part} second
 */
function secondsInWords(minute, hour, second) {
  if (!minute.all || !hour.all) return null;
  if (second.all) return { text: "every second", isTime: false };
  if (second.every) return { text: `every ${second.every} seconds`, isTime: false };
  return { text: `every minute at seconds ${list(second.values)}`, isTime: false };
}

/** @param {Part} minute */
function minutesInWords(minute) {
  if (minute.all) return "every minute";
  if (minute.every) return `every ${minute.every} minutes`;
  if (minute.values.length > 1) return null;
  return minute.values[0] ? `at minute ${minute.values[0]} of every hour` : "every hour";
}

/**
 * @param {Part} hour
 * @param {number} lastMinute
 */
function hoursInWords(hour, lastMinute) {
  const { values } = hour;
  const last = values[values.length - 1];
  if (hour.every) return `in every ${ordinal(hour.every)} hour`;
  if (isRun(values)) return `from ${clock(values[0], 0)} to ${clock(last, lastMinute)}`;
  return values.length <= MOST_TIMES ? `in the hours ${list(values.map((one) => clock(one, 0)))}` : null;
}

/**
 * The times of a day one by one; null if there are too many.
 * @param {Part} minute
 * @param {Part} hour
 */
function timesOf(minute, hour) {
  if (minute.all || hour.all || minute.every || hour.every) return null;
  if (minute.values.length * hour.values.length > MOST_TIMES) return null;
  return hour.values.flatMap((h) => minute.values.map((m) => clock(h, m)));
}

/**
 * The days. If both a day of the month and a day of the week are given, either matches, unless one of the fields begins with a star.
 * @param {Part} day
 * @param {Part} month
 * @param {Part} weekday
 */
function daysInWords(day, month, weekday) {
  if (day.values.length > MOST_LISTED) return null;
  const months = month.all ? "" : list(month.values.map((one) => MONTHS[one - 1]));
  if ((day.isStarred || weekday.isStarred) && !(day.all || weekday.all)) return null; // both fields must match then
  if (day.all && weekday.all) return months ? `every day in ${months}` : "every day";
  const ofMonth = day.all ? null : datesInWords(day, month);
  const ofWeek = weekday.all ? null : weekdaysInWords(weekday.values);
  if (ofMonth && ofWeek) return `${ofMonth}, and also ${ofWeek}${months && ` in ${months}`}`;
  return ofMonth ?? `${ofWeek}${months && ` in ${months}`}`;
}

/**
 * @param {Part} day
 * @param {Part} month
 */
function datesInWords(day, month) {
  const named = day.values.map((one) => (one === LAST_DAY ? "the last day" : String(one)));
  if (!month.all && month.values.length === 1) {
    const name = MONTHS[month.values[0] - 1];
    return named[0] === "the last day" ? `on the last day of ${name}` : `every ${list(named)} ${name}`;
  }
  const months = month.all ? "every month" : list(month.values.map((one) => MONTHS[one - 1]));
  if (named[0] === "the last day") return `on the last day of ${months}`;
  return `on ${named.length > 1 ? "days" : "day"} ${list(named)} of ${months}`;
}

/** @param {number[]} values */
function weekdaysInWords(values) {
  const days = [...new Set(values.map((one) => one % 7))].sort((a, b) => ((a + 6) % 7) - ((b + 6) % 7));
  if (days.length === 7) return "every day";
  const mondayFirst = days.map((one) => (one + 6) % 7);
  if (days.length > 2 && isRun(mondayFirst)) return `${DAYS[days[0]]} to ${DAYS[days[days.length - 1]]}`;
  return `every ${list(days.map((one) => DAYS[one]))}`;
}

/**
 * The values that a field allows; null if they have no short description.
 * @param {string} field
 * @param {number} least
 * @param {number} most
 * @param {string[]} [names]
 * @returns {Part | null}
 */
function parsed(field, least, most, names) {
  if (field === "*" || field === "?") return { every: null, values: [], all: true };
  const span = most - least + 1;
  const values = new Set();
  let every = null;
  for (const item of field.split(",")) {
    const found = item.match(/^(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:\/(\d+))?$/);
    if (!found) return null;
    const [, from, to, steps] = found;
    const step = steps === undefined ? 1 : Number(steps);
    if (step < 1 || (from === "*" && (to !== undefined || steps === undefined))) return null;
    const first = from === "*" ? least : numberOf(from, least, most, names);
    const last = to !== undefined ? numberOf(to, least, most, names) : from === "*" || steps !== undefined ? most : first;
    if (first === null || last === null || first > last) return null;
    for (let at = first; at <= last; at += step) values.add(at);
    if (from === "*" && field === item && least === 0 && span % step === 0 && step < span) every = step;
  }
  if (every === 1) return { every: null, values: [], all: true };
  return { every, values: [...values].sort((a, b) => a - b), all: false, isStarred: field.startsWith("*") };
}

/**
 * @param {string} text
 * @param {number} least
 * @param {number} most
 * @param {string[]} [names]
 */
function numberOf(text, least, most, names) {
  const named = names?.findIndex((name) => name.slice(0, 3).toLowerCase() === text) ?? -1;
  if (named >= 0) return named + (names === MONTHS ? 1 : 0);
  const value = /^\d+$/.test(text) ? Number(text) : NaN;
  return value >= least && value <= most ? value : null;
}

/** @param {number[]} values */
function isRun(values) {
  return values.every((value, at) => at === 0 || value === values[at - 1] + 1);
}

/**
 * @param {number} hour
 * @param {number} minute
 */
function clock(hour, minute) {
  return `${String(hour).padStart(2, "0")}:${String(minute).padStart(2, "0")}`;
}

/** @param {number} n */
function ordinal(n) {
  return `${n}${{ 2: "nd", 3: "rd" }[n] ?? "th"}`;
}

/** @param {(string | number)[]} items */
function list(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items[items.length - 1]}`;
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
