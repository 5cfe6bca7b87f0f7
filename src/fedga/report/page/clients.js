// What a round of local training does to each client: class accuracy before and after, above its label counts.

const MANY_CLASSES = 20; // with more of them a client's classes stand in the order of their counts, without names
const CLIENT_CHART = { width: 210, left: 26, right: 4, top: 8, high: 104, gap: 8, low: 34 };

class ClientCharts {
  constructor(root, data) {
    this.data = data;
    const places = [...new Set(data.evaluations.map((evaluation) => evaluation.place))];
    this.series = html("select", { onchange: () => this.choose(Number(this.series.value)) });
    const picker = placePicker(places.map((at) => data.places[at]), (at) => this.choosePlace(places[at]));
    const controls = html("div", { class: "controls", role: "group", "aria-label": "Whose clients" },
      ...picker.elements, html("label", {}, "algorithm ", this.series));
    this.grid = html("div", { class: "client-charts" });
    this.caption = html("p", { class: "quiet" });
    this.table = dataTable("These clients as a table", () => this.rows());
    root.append(controls, this.legend(), this.grid, this.caption, this.table.element);
    picker.start();
  }

  legend() {
    const entry = (attributes, text) => html("span", {}, html("i", attributes), ` ${text}`);
    return html("p", { class: "client-legend" },
      entry({ class: "before" }, "model the client received"),
      entry({ style: `--c:${this.data.lost}` }, "after its training: worse"),
      entry({ style: `--c:${this.data.gained}` }, "not worse"),
      entry({ class: "absent" }, "no sample of this class"));
  }

  choosePlace(place) {
    const here = this.data.evaluations.map((evaluation, at) => [at, evaluation]).filter(([, evaluation]) => evaluation.place === place);
    offer(this.series, here.map(([at, evaluation]) => [at, evaluation.label]));
    this.choose(Number(this.series.value));
  }

  choose(at) {
    this.evaluation = this.data.evaluations[at];
    this.counts = this.data.held[this.evaluation.counts];
    this.classes = this.data.classNames[this.evaluation.classes];
    this.many = this.classes.length > MANY_CLASSES;
    this.tallest = Math.max(1, ...this.counts.flat());
    this.grid.replaceChildren(...this.evaluation.clients.map((_, client) => this.client(client)));
    const { label, round, seed, clients, of } = this.evaluation;
    const said = [`${label}, round ${round}, seed ${seed}.`];
    said.push(`Bars: samples of each class, the tallest ${whole(this.tallest)}.`);
    if (this.many) said.push("Each client's classes stand in the order of their counts.");
    if (clients.length < of) said.push(`Shown: ${clients.length} of ${of} clients.`);
    this.caption.textContent = said.join(" ");
    this.table.refresh();
  }

  client(at) {
    const counts = this.counts[at];
    const order = counts.map((_, of) => of);
    if (this.many) order.sort((one, other) => counts[other] - counts[one] || one - other);
    const upright = this.classes.every((name) => name.length <= 2);
    const below = this.many ? 4 : upright ? 16 : 58;
    const base = CLIENT_CHART.high + CLIENT_CHART.gap + CLIENT_CHART.low;
    const attributes = { viewBox: `0 0 ${CLIENT_CHART.width} ${base + below}`, role: "img", "aria-label": this.sentence(at) };
    const picture = svg("svg", attributes, ...this.axis(),
      ...order.map((of, place) => this.column(at, of, place, { base, upright })));
    const title = `client ${this.evaluation.clients[at]}, ${plural(sum(counts), "sample")}`;
    return html("figure", { class: "client-chart" }, html("figcaption", {}, title), picture);
  }

  y(thousandths) {
    return CLIENT_CHART.top + (CLIENT_CHART.high - CLIENT_CHART.top) * (1 - thousandths / 1000);
  }

  axis() {
    return [0, 500, 1000].flatMap((value) => [
      svg("path", { class: "grid", d: `M${CLIENT_CHART.left} ${this.y(value)}H${CLIENT_CHART.width - CLIENT_CHART.right}` }),
      svgText(String(value / 1000), CLIENT_CHART.left - 4, this.y(value) + 4, "end"),
    ]);
  }

  // One class: grey where the client misses it, a bar of its samples, and the way its accuracy went.
  column(at, of, place, { base, upright }) {
    const held = this.counts[at][of];
    const step = (CLIENT_CHART.width - CLIENT_CHART.left - CLIENT_CHART.right) / this.classes.length;
    const x = CLIENT_CHART.left + place * step;
    const tall = (CLIENT_CHART.low * held) / this.tallest;
    const column = svg("g", {}, svg("title", {}, this.classText(at, of)));
    if (!held) column.append(svg("rect", { class: "absent", x, y: 4, width: step, height: base - 4 }));
    column.append(svg("rect", { class: "held", x: x + 0.12 * step, y: base - tall, width: 0.76 * step, height: tall }));
    column.append(...this.change(at, of, x + step / 2, step));
    if (!this.many) column.append(this.className(this.classes[of], x + step / 2, base, upright));
    return column;
  }

  change(at, of, x, step) {
    const [before, after] = [this.evaluation.before[at][of], this.evaluation.after[at][of]];
    if (before === null || after === null) return [];
    const style = `--c:${after < before ? this.data.lost : this.data.gained}`;
    const width = this.many ? Math.min(1.5, 0.8 * step) : 2.4;
    const d = `M${x} ${this.y(before)}V${this.y(after)}`;
    const way = svg("path", { class: "change", d, "stroke-width": width, style });
    if (this.many) return [way];
    return [
      way,
      svg("circle", { class: "before", cx: x, cy: this.y(before), r: 3 }),
      svg("circle", { class: "after", cx: x, cy: this.y(after), r: 3.4, style }),
    ];
  }

  className(name, x, base, upright) {
    if (upright) return svgText(name, x, base + 13, "middle");
    const short = name.length > 9 ? `${name.slice(0, 8)}…` : name;
    return svg("g", { transform: `translate(${x + 4} ${base + 5}) rotate(-90)` }, svgText(short, 0, 0, "end"));
  }

  classText(at, of) {
    const percent = (value) => (value === null ? "unknown" : `${(value / 10).toFixed(1)} %`);
    const [before, after] = [this.evaluation.before[at][of], this.evaluation.after[at][of]].map(percent);
    return `class ${this.classes[of]}, ${plural(this.counts[at][of], "sample")}: ${before} before, ${after} after`;
  }

  sentence(at) {
    const { before, after, clients } = this.evaluation;
    const known = this.classes.map((_, of) => of).filter((of) => before[at][of] !== null);
    const mean = (name, fits) => {
      const found = known.filter((of) => fits(this.counts[at][of])).map((of) => (after[at][of] - before[at][of]) / 10);
      return found.length ? [`${name}: ${(sum(found) / found.length).toFixed(1).replace("-", "−")} points`] : [];
    };
    const changes = [...mean("classes it holds", (held) => held > 0), ...mean("classes it misses", (held) => !held)];
    const held = plural(sum(this.counts[at]), "sample");
    return `Client ${clients[at]}, ${held}; mean change of class accuracy, ${changes.join(", ")}`;
  }

  rows() {
    const value = (thousandths) => (thousandths === null ? "–" : (thousandths / 1000).toFixed(3));
    const row = (client, at) => this.classes.map((name, of) => [
      `${client}, ${name}`, this.counts[at][of], value(this.evaluation.before[at][of]), value(this.evaluation.after[at][of]),
    ]);
    return [["client, class", "samples", "before", "after"], ...this.evaluation.clients.flatMap(row)];
  }
}
