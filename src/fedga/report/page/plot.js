// Curves over rounds: a line and a band per algorithm, which a reader can choose, zoom and read values off.

const MARGIN = { left: 54, right: 12, top: 10, bottom: 42 };
const MARKERS = 7; // per line
const HOW_TO_READ =
  "Drag across the picture to zoom in, double-click to see all; the arrow keys or a finger read values off.";

class Plot {
  constructor(root, data) {
    this.data = data;
    this.lines = new Lines(data);
    this.metric = 0;
    this.view = null; // what a reader has zoomed into: rounds, and values or null to fit them
    this.cursor = null; // the round that is read
    const cohorts = data.places.flatMap((place) => place.cohorts);
    this.hidden = new Set(cohorts.filter((cohort) => !cohort.shown).flatMap((cohort) => cohort.members));
    this.build(root);
    this.listen();
    this.picker.start();
    new ResizeObserver(() => this.draw()).observe(this.chart);
  }

  build(root) {
    this.picker = placePicker(this.data.places, (at) => this.choosePlace(at));
    this.metrics = html("select", { onchange: () => this.chooseMetric(Number(this.metrics.value)) }, ...this.options());
    this.logY = this.box(() => this.reset());
    this.logX = this.box(() => this.reset());
    this.withSeeds = this.box(() => this.draw());
    const check = (box, text) => html("label", { class: "check" }, box, ` ${text}`);
    const button = (text, title, onclick) =>
      html("button", { type: "button", "aria-label": title, title, onclick }, text);
    const controls = html("div", { class: "controls", role: "group", "aria-label": "What the curves show" },
      ...this.picker.elements,
      html("label", {}, "metric ", this.metrics),
      check(this.logY, "log y"), check(this.logX, "log rounds"), check(this.withSeeds, "seeds"),
      html("span", { class: "buttons" },
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("Reset", "Reset the zoom", () => this.reset())));
    const said = "Curves over rounds: the left and right arrow keys read values off, plus and minus zoom, 0 resets";
    this.chart = html("div", { class: "chart", tabindex: 0, role: "group", "aria-label": said });
    this.legend = new Legend(this.hidden, () => this.draw());
    this.live = html("p", { class: "unseen", role: "status" });
    this.caption = html("p", { class: "quiet" });
    this.table = dataTable("The curves as a table", () => this.rows());
    const both = html("div", { class: "plot" }, this.chart, this.legend.element);
    root.append(controls, both, this.live, this.caption, this.table.element);
  }

  options() {
    const groups = [...new Set(this.data.metrics.map((metric) => metric.group))];
    const option = (metric, value) => html("option", { value }, metric.label);
    return groups.map((group) => html("optgroup", { label: group },
      ...this.data.metrics.flatMap((metric, at) => (metric.group === group ? [option(metric, at)] : []))));
  }

  box(changed) {
    return html("input", { type: "checkbox", onchange: changed });
  }

  listen() {
    const listeners = {
      pointerdown: (event) => this.press(event),
      pointermove: (event) => this.move(event),
      pointerup: (event) => this.release(event),
      pointercancel: () => this.drop(),
      pointerleave: (event) => event.pointerType === "mouse" && !this.drag && this.read(null),
      dblclick: () => this.reset(),
      keydown: (event) => this.key(event),
    };
    for (const [name, listener] of Object.entries(listeners)) this.chart.addEventListener(name, listener);
  }

  choosePlace(at) {
    this.place = this.data.places[at];
    this.cursor = null;
    this.legend.show(this.place);
    this.reset();
  }

  chooseMetric(at) {
    this.metric = at;
    this.logY.checked = Boolean(this.kind.ratio);
    this.reset();
  }

  get kind() {
    return this.data.metrics[this.metric];
  }

  get members() {
    return this.place.cohorts.flatMap((cohort) => cohort.members).filter((member) => !this.hidden.has(member));
  }

  // Axes: where they begin and end

  limits(view) {
    const runs = this.shown.flatMap(({ seeds, diverged }) => [...seeds, ...diverged]);
    const last = Math.max(1, ...runs.map(({ rounds }) => rounds.at(-1)));
    const first = this.logX.checked ? Math.max(1, Math.min(last, ...runs.map(({ rounds }) => rounds[0]))) : 0;
    const x = view?.x ?? [first, last];
    return { x, y: view?.y ?? this.fitted(x, Boolean(view)) };
  }

  // The values in view. With the whole of training in view, its first tenth does not set the scale: how lines leave
  // chance is not what is read, but where they end.
  fitted([first, last], zoomed) {
    const log = this.logY.checked;
    const { bounded, ratio } = this.kind;
    const from = zoomed ? first : first + 0.1 * (last - first);
    const inView = (round) => round >= from && round <= last;
    const points = this.shown.flatMap((series) => series.points.filter((point) => inView(point.round)));
    const banded = zoomed || log ? points.flatMap((point) => [point.low, point.high]) : [];
    const runs = this.withSeeds.checked ? this.shown.flatMap((series) => series.seeds) : [];
    const single = runs.flatMap(({ rounds, values }) => values.filter((_, at) => inView(rounds[at])));
    const values = [...points.map((point) => point.middle), ...banded, ...single]
      .filter((value) => Number.isFinite(value) && (!log || value > 0)).sort(ascending);
    if (!values.length) return log ? [0.1, 1] : [0, 1];
    const low = values[bounded && !zoomed ? Math.floor(0.02 * values.length) : 0];
    const high = values[Math.floor((ratio ? 0.98 : 1) * (values.length - 1))]; // a ratio's band may leave the picture
    if (log) return [low / 1.1, Math.max(1.1 * high, 1.5 * low)];
    const room = Math.max(0.06 * (high - low), zoomed ? 1e-6 : 0.005);
    return bounded ? [Math.max(0, low - room), Math.min(1, high + room)] : [low - room, high + room];
  }

  // Drawing

  draw() {
    const width = this.chart.clientWidth;
    if (width < LEAST_WIDTH) return;
    this.shown = this.members.map((member) => this.lines.series(member, this.metric));
    const rounds = new Set(this.shown.flatMap((series) => series.points.map((point) => point.round)));
    this.rounds = [...rounds].filter((round) => round > 0 || !this.logX.checked).sort(ascending);
    this.withoutStart = rounds.size > this.rounds.length;
    if (!this.rounds.includes(this.cursor)) this.cursor = null;
    this.width = width;
    this.height = Math.round(within(0.62 * width, 270, 460));
    this.inner = { width: width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom };
    const { x, y } = this.limits(this.view);
    this.x = makeScale(x, this.logX.checked);
    this.y = makeScale(y, this.logY.checked);
    this.marks = svg("g");
    this.frame = svg("rect", { class: "selection", visibility: "hidden" });
    this.picture = svg("svg", { viewBox: `0 0 ${width} ${this.height}`, role: "img", "aria-label": this.description() },
      svg("clipPath", { id: "plot-clip" }, svg("rect", {
        x: MARGIN.left, y: MARGIN.top - 4, width: this.inner.width + 4, height: this.inner.height + 8,
      })),
      ...this.axes(),
      svg("g", { "clip-path": "url(#plot-clip)" },
        ...this.shown.map((series) => this.band(series)),
        ...(this.withSeeds.checked ? this.shown.flatMap((series) => this.seedLines(series)) : []),
        ...this.shown.flatMap((series) => this.divergedLines(series)),
        ...this.shown.map((series, at) => this.line(series, at))),
      this.marks, this.frame);
    this.chart.replaceChildren(this.picture);
    this.caption.textContent = this.words();
    this.table.refresh();
    this.read(this.cursor);
  }

  px(round) {
    return MARGIN.left + this.x.to(round) * this.inner.width;
  }

  py(value) {
    const share = this.y.log && value <= 0 ? -1 : this.y.to(value);
    return MARGIN.top + (1 - within(share, -2, 3)) * this.inner.height;
  }

  // On a logarithm, round 0 has no place.
  placed(points) {
    return points.filter(({ round, value }) => Number.isFinite(value) && !(this.x.log && round <= 0));
  }

  point({ round, value }) {
    return `${this.px(round).toFixed(1)} ${this.py(value).toFixed(1)}`;
  }

  path(points) {
    return points.length ? `M${points.map((point) => this.point(point)).join("L")}` : "";
  }

  axes() {
    const bottom = MARGIN.top + this.inner.height;
    const right = MARGIN.left + this.inner.width;
    const up = ticksOf(this.y, Math.max(3, Math.floor(this.inner.height / 36)));
    const across = ticksOf(this.x, Math.max(3, Math.floor(this.inner.width / 70))).filter(Number.isInteger);
    return [
      ...up.flatMap((tick) => [
        svg("path", { class: "grid", d: `M${MARGIN.left} ${this.py(tick).toFixed(1)}H${right}` }),
        svgText(tickText(tick), MARGIN.left - 7, this.py(tick) + 4, "end", "tick y"),
      ]),
      ...across.flatMap((tick) => [
        svg("path", { class: "grid", d: `M${this.px(tick).toFixed(1)} ${bottom}v5` }),
        svgText(tickText(tick), this.px(tick), bottom + 19, "middle", "tick x"),
      ]),
      svg("path", { class: "base", d: `M${MARGIN.left} ${bottom}H${right}` }),
      svgText("round", (MARGIN.left + right) / 2, this.height - 5, "middle", "axis"),
    ];
  }

  band({ member, points }) {
    const upper = this.placed(points.map(({ round, high }) => ({ round, value: high })));
    const lower = this.placed(points.map(({ round, low }) => ({ round, value: low }))).reverse();
    const around = [...upper, ...lower];
    return svg("path", { class: "band", style: `--c:${member.color}`, d: this.path(around) });
  }

  runPoints({ rounds, values }) {
    return this.placed(rounds.map((round, at) => ({ round, value: values[at] })));
  }

  seedLines({ member, seeds }) {
    const style = `--c:${member.color}`;
    return seeds.map((run) => svg("path", { class: "seed", style, d: this.path(this.runPoints(run)) }));
  }

  divergedLines({ member, diverged }) {
    return diverged.map((run) => {
      const points = this.runPoints(run);
      const end = points.length ? `translate(${this.point(points.at(-1))})` : "scale(0)";
      return svg("g", { class: "diverged", style: `--c:${member.color}` },
        svg("title", {}, `${member.label}, seed ${run.seed}: diverged`),
        svg("path", { class: "seed", d: this.path(points) }),
        svg("path", { class: "cross", d: "M-5 -5L5 5M-5 5L5 -5", transform: end }));
    });
  }

  line({ member, points }, number) {
    const placed = this.placed(points.map(({ round, middle }) => ({ round, value: middle })));
    const step = Math.max(1, Math.floor(placed.length / MARKERS));
    const first = Math.min(Math.floor((number * step) / 4), placed.length - 1);
    const marked = placed.filter((_, at) => at >= first && (at - first) % step === 0);
    const stroke = { "stroke-width": member.width, "stroke-dasharray": member.dash };
    return svg("g", { class: "series", style: `--c:${member.color}`, "data-label": member.label },
      svg("path", { class: "line", d: this.path(placed), ...stroke }),
      ...marked.map((point) => svg("path", {
        class: "marker", d: member.marker, transform: `translate(${this.point(point)}) scale(${member.size})`,
      })));
  }

  // Reading values off

  texts(point) {
    if (!point) return ["–", ""];
    const { ratio } = this.kind;
    const wide = ratio || !Number.isFinite(point.low) ? "" : `± ${numberText(point.middle - point.low)}`;
    return [numberText(point.middle, ratio), wide];
  }

  // Shows the values of a round, or of the last one; `aloud` also tells a screen reader.
  read(round, aloud = false) {
    this.cursor = round;
    if (!this.shown) return;
    const at = round ?? this.rounds.at(-1);
    const points = new Map(this.shown.map((series) => [series.member, series.at.get(at)]));
    const when = at === undefined ? ": nothing to show" : `, round ${whole(at)}${round === null ? " (last)" : ""}`;
    this.legend.write(this.kind.label + when, (member) => this.texts(points.get(member)));
    this.marks.replaceChildren(...(round === null ? [] : this.cursorMarks(round, points)));
    if (aloud) this.live.textContent = `Round ${round}: ${this.values(points)}`;
  }

  values(points) {
    const known = [...points].filter(([, point]) => point);
    return known.map(([member, point]) => `${member.label} ${this.texts(point).join(" ").trim()}`).join("; ");
  }

  cursorMarks(round, points) {
    const x = this.px(round);
    const known = [...points].filter(([, point]) => Number.isFinite(point?.middle));
    return [
      svg("path", { class: "cursor", d: `M${x.toFixed(1)} ${MARGIN.top}v${this.inner.height}` }),
      ...known.map(([member, point]) => svg("circle", {
        class: "spot", style: `--c:${member.color}`, cx: x, cy: this.py(point.middle), r: 4,
      })),
    ];
  }

  nearest(left) {
    const wanted = this.x.at(within((left - MARGIN.left) / this.inner.width, 0, 1));
    const nearer = (best, round) => (Math.abs(round - wanted) < Math.abs(best - wanted) ? round : best);
    return this.rounds.length ? this.rounds.reduce(nearer) : null;
  }

  // Pointer: a mouse reads where it hovers and zooms into what it frames; a finger reads where it touches.

  spot(event) {
    const box = this.picture.getBoundingClientRect();
    return { left: event.clientX - box.left, top: event.clientY - box.top };
  }

  press(event) {
    const spot = this.spot(event);
    if (event.pointerType !== "mouse") this.read(this.nearest(spot.left));
    else if (event.button === 0) {
      this.drag = spot;
      this.chart.setPointerCapture(event.pointerId);
    }
  }

  move(event) {
    const spot = this.spot(event);
    if (!this.drag) {
      this.read(this.nearest(spot.left));
      return;
    }
    const { x, y, width, height } = this.framed(spot);
    for (const [name, value] of Object.entries({ x, y, width, height })) this.frame.setAttribute(name, value);
    this.frame.setAttribute("visibility", "visible");
  }

  // The rectangle between where dragging began and the pointer; a flat one takes the whole height.
  framed(spot) {
    const across = [this.drag.left, spot.left].map((left) => within(left, MARGIN.left, MARGIN.left + this.inner.width));
    const down = [this.drag.top, spot.top].map((top) => within(top, MARGIN.top, MARGIN.top + this.inner.height));
    const [x, right] = across.sort(ascending);
    const [top, bottom] = down.sort(ascending);
    const flat = bottom - top < 16;
    const [y, height] = flat ? [MARGIN.top, this.inner.height] : [top, bottom - top];
    return { x, y, width: right - x, height, flat };
  }

  release(event) {
    if (!this.drag) return;
    const { x, y, width, height, flat } = this.framed(this.spot(event));
    this.drop();
    if (width < 8) return;
    const round = (left) => this.x.at((left - MARGIN.left) / this.inner.width);
    const value = (top) => this.y.at(1 - (top - MARGIN.top) / this.inner.height);
    this.view = { x: [round(x), round(x + width)], y: flat ? null : [value(y + height), value(y)] };
    this.draw();
  }

  drop() {
    this.drag = null;
    this.frame.setAttribute("visibility", "hidden");
  }

  // Buttons and keys zoom around the round that is read, or the middle.
  zoom(factor) {
    const around = this.cursor === null ? 0.5 : within(this.x.to(this.cursor), 0, 1);
    const [low, high] = [around * (1 - factor), around + (1 - around) * factor].map((share) => this.x.at(share));
    const [first, last] = this.limits(null).x;
    this.view = low <= first && high >= last ? null : { x: [Math.max(first, low), Math.min(last, high)], y: null };
    this.draw();
  }

  reset() {
    this.view = null;
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.rounds.length - 1;
    const at = this.cursor === null ? last + 1 : this.rounds.indexOf(this.cursor);
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: last };
    const [nearer, farther, all] = [() => this.zoom(0.5), () => this.zoom(2), () => this.reset()];
    const acts = { "+": nearer, "=": nearer, "-": farther, 0: all, Escape: all };
    if (event.key in moves && last >= 0) this.go(this.rounds[within(moves[event.key], 0, last)]);
    else if (event.key in acts) acts[event.key]();
    else return;
    event.preventDefault();
  }

  // The keyboard's cursor takes the view with it.
  go(round) {
    const [first, last] = this.view?.x ?? [round, round];
    const by = Math.min(0, round - first) + Math.max(0, round - last);
    if (by) {
      this.view = { x: [first + by, last + by], y: this.view.y };
      this.draw();
    }
    this.read(round, true);
  }

  // Words

  description() {
    const ends = new Map(this.shown.map(({ member, points }) => [member, points.at(-1)]));
    const last = this.values(ends) || "nothing";
    return `${this.kind.label} over rounds, ${placeTitle(this.place)}. In the last round: ${last}.`;
  }

  words() {
    const numbers = this.shown.flatMap(({ points }) => points.map((point) => point.seeds)).sort(ascending);
    const [fewest, most] = [numbers[0] ?? 0, numbers.at(-1) ?? 0];
    const seeds = fewest === most ? plural(most, "seed") : `${fewest} to ${most} seeds`;
    const several = this.kind.ratio
      ? `Line: median of ${seeds}; band: from the lowest to the highest.`
      : `Line: mean of ${seeds}; band: their standard deviation.`;
    const crossed = this.shown.some(({ diverged }) => diverged.length) ? "×: a run that diverged, in no mean." : "";
    const zero = this.withoutStart ? "Round 0 has no place on a logarithm." : "";
    return [most > 1 ? several : "One seed.", crossed, zero, HOW_TO_READ].filter(Boolean).join(" ");
  }

  rows() {
    const heads = ["round", ...this.shown.map(({ member }) => member.label)];
    const row = (round) => [round, ...this.shown.map(({ at }) => numberText(at.get(round)?.middle, this.kind.ratio))];
    return [heads, ...this.rounds.map(row)];
  }
}
