// Axes: from values to places and back, and the round numbers that are written beside them.

function makeScale([low, high], log) {
  const into = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const from = into(low);
  const size = into(high) - from || 1;
  return { low, high, log, to: (value) => (into(value) - from) / size, at: (share) => back(from + share * size) };
}

const rounded = (value) => Number(value.toPrecision(12));

function linearTicks(low, high, most) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span));
  const steps = [0.1, 0.2, 0.5, 1, 2, 5].map((factor) => factor * power);
  const step = steps.find((size) => span / size <= most) ?? span;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; at += 1) ticks.push(rounded(at * step));
  return ticks;
}

function logTicks(low, high, most) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += 1) {
    for (const factor of [1, 2, 5]) ticks.push(rounded(factor * 10 ** power));
  }
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  if (inside.length < 2) return linearTicks(low, high, most).filter((tick) => tick > 0);
  if (inside.length <= most) return inside;
  const decades = inside.filter((tick) => Number.isInteger(rounded(Math.log10(tick))));
  return decades.filter((_, at) => at % Math.ceil(decades.length / most) === 0);
}

const ticksOf = (scale, most) => (scale.log ? logTicks : linearTicks)(scale.low, scale.high, most);

function tickText(tick) {
  const size = Math.abs(tick);
  const plain = !size || (size >= 1e-4 && size < 1e5);
  if (plain) return tick.toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "−");
  const power = Math.floor(Math.log10(size) + 1e-9);
  const factor = rounded(tick / 10 ** power);
  const raised = String(power).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `${factor === 1 ? "" : `${factor}·`}10${raised}`;
}
