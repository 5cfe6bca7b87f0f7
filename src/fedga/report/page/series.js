// The runs behind a line: unpacked when they are looked at, and put together over seeds.

const nothing = { middle: NaN, low: NaN, high: NaN, seeds: 0 };

// Median and range, for ratios: their tails are heavy, and an infinite one is a value.
function medianOf(values) {
  const known = [...values].sort(ascending);
  const [low, high] = [known[(known.length - 1) >> 1], known[known.length >> 1]];
  const finite = known.filter(Number.isFinite);
  const several = finite.length > 1;
  return {
    middle: low === high ? low : (low + high) / 2,
    low: several ? finite[0] : NaN,
    high: several ? finite.at(-1) : NaN,
    seeds: known.length,
  };
}

// Mean and sample standard deviation.
function meanOf(values) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return nothing;
  const middle = sum(finite) / finite.length;
  const squares = sum(finite.map((value) => (value - middle) ** 2));
  const wide = finite.length > 1 ? Math.sqrt(squares / (finite.length - 1)) : NaN;
  return { middle, low: middle - wide, high: middle + wide, seeds: finite.length };
}

class Lines {
  constructor(data) {
    this.data = data;
    this.known = new Map();
  }

  // One run: rounds and values, which are packed as differences unless they are marked as plain.
  of(run, metric) {
    const packed = this.data.lines[run][metric];
    if (!packed) return null;
    const [rounds, values, plain] = packed;
    const scaled = plain ? values.map(Number) : this.summed(values).map((value) => value / this.data.scale);
    return { rounds: this.summed(this.data.rounds[rounds]), values: scaled };
  }

  summed(differences) {
    let total = 0;
    return differences.map((difference) => (total += difference));
  }

  // One algorithm under one setting: its runs, and a point per round. A run that diverged counts in no point.
  series(member, metric) {
    const key = `${member.runs[0]}/${metric}`;
    if (!this.known.has(key)) this.known.set(key, this.together(member, metric));
    return this.known.get(key);
  }

  together(member, metric) {
    const runs = member.runs.flatMap((run) => {
      const [seed, status] = this.data.runs[run];
      const line = this.of(run, metric);
      return line ? [{ ...line, seed, diverged: status === "diverged" }] : [];
    });
    const seeds = runs.filter((run) => !run.diverged);
    const byRound = new Map();
    for (const { rounds, values } of seeds) {
      rounds.forEach((round, at) => byRound.set(round, [...(byRound.get(round) ?? []), values[at]]));
    }
    const statistics = this.data.metrics[metric].ratio ? medianOf : meanOf;
    const rounds = [...byRound.keys()].sort(ascending);
    const points = rounds.map((round) => ({ round, ...statistics(byRound.get(round)) }));
    const at = new Map(points.map((point) => [point.round, point]));
    return { member, seeds, diverged: runs.filter((run) => run.diverged), points, at };
  }
}
