// Who holds which classes: samples of every class at every client.

const LEVELS = 24; // of colour; cells of one colour are one path, so that thousands of them are drawn at once
const LONGEST_CLIENT = 14; // letters of a name below the map

// A colour on the way through a list of them, as "#rrggbb" each.
function mix(colors, share) {
  const at = share * (colors.length - 1);
  const low = Math.min(Math.floor(at), colors.length - 2);
  const channel = (color, place) => parseInt(color.slice(1 + 2 * place, 3 + 2 * place), 16);
  const parts = [0, 1, 2].map((place) => {
    const [one, other] = [channel(colors[low], place), channel(colors[low + 1], place)];
    return Math.round(one + (other - one) * (at - low));
  });
  return `rgb(${parts.join(" ")})`;
}

class HeatMap {
  constructor(root, data) {
    this.maps = data.maps;
    this.light = data.ramp;
    this.dark = [...data.ramp].reverse(); // many samples stand out from either page
    const said = "Map of clients and classes: the arrow keys move from cell to cell";
    this.chart = html("div", { class: "chart", tabindex: 0, role: "group", "aria-label": said });
    this.readout = html("p", { class: "readout", role: "status" });
    this.caption = html("p", { class: "quiet" });
    this.scale = html("p", { class: "scale-bar", "aria-hidden": "true" });
    this.table = dataTable("The map as a table", () => this.rows());
    const picker = placePicker(this.maps, (at) => this.choose(at));
    const controls = html("div", { class: "controls", role: "group", "aria-label": "Which map" }, ...picker.elements);
    root.append(controls, this.scale, this.chart, this.readout, this.caption, this.table.element);
    for (const name of ["pointermove", "pointerdown"]) this.chart.addEventListener(name, (event) => this.point(event));
    this.chart.addEventListener("keydown", (event) => this.key(event));
    picker.start();
    new ResizeObserver(() => this.draw()).observe(this.chart);
  }

  choose(at) {
    this.map = this.maps[at];
    this.cell = null;
    const { counts, clients, seed, said, largest } = this.map;
    const words = [said, "An empty cell is a class of which the client has no sample.", `Seed ${seed}.`];
    if (counts.length < clients) words.push(`Shown: the first ${counts.length} of ${whole(clients)} clients.`);
    this.caption.textContent = words.join(" ");
    const swatches = [0, 0.25, 0.5, 0.75, 1].map((share) => html("i", { style: this.color(share) }));
    this.scale.replaceChildren("1 sample ", ...swatches, ` ${plural(largest, "sample")}`);
    this.draw();
    this.table.refresh();
  }

  color(share) {
    return `--light:${mix(this.light, share)};--dark:${mix(this.dark, share)}`;
  }

  draw() {
    const width = this.chart.clientWidth;
    if (width < LEAST_WIDTH) return;
    const { counts, classes, said } = this.map;
    const named = classes.length <= 40;
    const longest = Math.max(...classes.map((name) => name.length));
    const left = named ? Math.min(10 + 7 * longest, 0.28 * width) : 34;
    const tall = within(520 / classes.length, 3, 22);
    this.box = { left, top: 4, wide: (width - left - 4) / counts.length, tall, bottom: 4 + tall * classes.length };
    this.cursor = svg("rect", { class: "cursor-box", width: this.box.wide, height: tall, visibility: "hidden" });
    const label = `Samples of ${classes.length} classes at ${counts.length} clients, ${placeTitle(this.map)}. ${said}`;
    const middle = `translate(14 ${this.box.bottom / 2}) rotate(-90)`;
    this.chart.replaceChildren(
      svg("svg", { viewBox: `0 0 ${width} ${this.box.bottom + 34}`, role: "img", "aria-label": label },
        svg("rect", { class: "frame", x: left, y: 4, width: width - left - 4, height: this.box.bottom - 4 }),
        ...this.cells(),
        ...(named ? this.classNames() : [svg("g", { transform: middle }, svgText("class", 0, 0, "middle", "axis"))]),
        ...this.clientNumbers(width),
        svgText("client", (left + width) / 2, this.box.bottom + 30, "middle", "axis"),
        this.cursor));
    this.show();
  }

  cells() {
    const { left, top, wide, tall } = this.box;
    const gap = wide > 5 ? 0.6 : 0;
    const most = Math.log(Math.max(this.map.largest, 2));
    const paths = Array.from({ length: LEVELS + 1 }, () => []);
    this.map.counts.forEach((row, client) => row.forEach((number, of) => {
      if (!number) return;
      const sizes = [left + client * wide, top + of * tall, wide - gap, tall - gap, gap - wide];
      const [x, y, across, down, back] = sizes.map((size) => size.toFixed(1));
      paths[Math.round((LEVELS * Math.log(number)) / most)].push(`M${x} ${y}h${across}v${down}h${back}z`);
    }));
    const drawn = (path, level) => svg("path", { class: "cells", d: path.join(""), style: this.color(level / LEVELS) });
    return paths.map(drawn);
  }

  classNames() {
    const { left, top, tall } = this.box;
    const most = Math.floor((left - 10) / 7);
    const short = (name) => (name.length > most ? `${name.slice(0, Math.max(most - 1, 1))}…` : name);
    return this.map.classes.map((name, at) => svgText(short(name), left - 6, top + (at + 0.5) * tall + 4, "end"));
  }

  clientNumbers(width) {
    const { left, wide, bottom } = this.box;
    const longest = Math.max(4, ...this.map.names.map((name) => Math.min(name.length, LONGEST_CLIENT)));
    const fewest = this.map.counts.length / Math.floor((width - left) / (8.5 * longest));
    const step = [1, 2, 5, 10, 20, 25, 50].find((size) => size >= fewest) ?? 100;
    const shown = this.map.counts.map((_, at) => at).filter((at) => at % step === 0);
    return shown.map((at) => svgText(this.client(at).slice(0, LONGEST_CLIENT), left + (at + 0.5) * wide, bottom + 14, "middle"));
  }

  client(at) {
    return this.map.names[at] ?? String(at);
  }

  point(event) {
    const frame = this.chart.getBoundingClientRect();
    const client = Math.floor((event.clientX - frame.left - this.box.left) / this.box.wide);
    const of = Math.floor((event.clientY - frame.top - this.box.top) / this.box.tall);
    if (this.map.counts[client]?.[of] === undefined) return;
    this.cell = [client, of];
    this.show();
  }

  key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [client, of] = this.cell ?? [-move[0], -move[1]];
    const ends = [this.map.counts.length - 1, this.map.classes.length - 1];
    this.cell = [within(client + move[0], 0, ends[0]), within(of + move[1], 0, ends[1])];
    this.show();
  }

  show() {
    if (!this.cell) {
      this.readout.textContent = "Point at a cell, or move over the map with the arrow keys.";
      return;
    }
    const [client, of] = this.cell;
    const row = this.map.counts[client];
    const held = `${whole(row[of])} of its ${plural(sum(row), "sample")}`;
    this.readout.textContent = `Client ${this.client(client)}, class ${this.map.classes[of]}: ${held}`;
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x", this.box.left + client * this.box.wide);
    this.cursor.setAttribute("y", this.box.top + of * this.box.tall);
  }

  rows() {
    return [["client", ...this.map.classes], ...this.map.counts.map((row, at) => [this.client(at), ...row])];
  }
}
