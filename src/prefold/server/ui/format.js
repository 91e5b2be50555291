// Format: numbers, sizes and times as people read them.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(value) {
  return WHOLE.format(value);
}

/** A number of any size in three digits. */
export function number(value) {
  return Math.abs(value) >= 1000 ? WHOLE.format(value) : SHORT.format(value);
}

export function bytes(value) {
  let power = 0;
  while (value >= 1024 && power < UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${SHORT.format(value)} ${UNITS[power]}`;
}

export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/** How long something took. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${SHORT.format(1000 * seconds)} ms`;
  return seconds < 120 ? `${SHORT.format(seconds)} s` : span(seconds);
}

/** How long ago, or for how long, in one unit. */
export function span(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${WHOLE.format(seconds)} s`;
  if (seconds < 3600) return `${WHOLE.format(seconds / 60)} min`;
  if (seconds < 172800) return `${WHOLE.format(seconds / 3600)} h`;
  return `${WHOLE.format(seconds / 86400)} d`;
}

export function clock(unixSeconds) {
  return new Date(1000 * unixSeconds).toLocaleTimeString("en-GB");
}

export function plural(amount, one, many = `${one}s`) {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}
