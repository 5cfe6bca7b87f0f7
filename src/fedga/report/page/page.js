// The page as it opens: tables and theme at once, charts as soon as their numbers are unpacked.

function startTheme() {
  const root = document.documentElement;
  const button = find("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function name() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show in ${isDark() ? "light" : "dark"} colours`);
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
}

// On paper nothing can be opened.
function startPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = findAll("details:not([open], .data)");
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
}

// The rows of the curves, where the whole table is too long for the page.
function chartRows(data, lines) {
  const [names, metrics, settings] = data.columns;
  const places = metrics.map((name) => data.metrics.findIndex((metric) => metric.name === name));
  const rows = data.runs.flatMap(([, , ...named], run) => {
    const byRound = new Map();
    places.forEach((place, column) => {
      const line = place < 0 ? null : lines.of(run, place);
      line?.rounds.forEach((round, at) => {
        if (!byRound.has(round)) byRound.set(round, metrics.map(() => ""));
        byRound.get(round)[column] = line.values[at] === Infinity ? "inf" : line.values[at];
      });
    });
    const [before, after] = [named.slice(0, names.length), named.slice(names.length)];
    return [...byRound.keys()].sort(ascending).map((round) => [...before, round, ...byRound.get(round), ...after]);
  });
  return [[...names, "round", ...metrics, ...settings], ...rows];
}

function startDownloads(data) {
  const whole = find("#csv-data").textContent !== "";
  find("#rows").addEventListener("click", async () => {
    if (whole) save("rounds.csv", await unpack("csv-data"));
    else save("curves.csv", csvText(chartRows(data, new Lines(data))));
  });
  find("#summary-rows").addEventListener("click", () => find("#results button.csv").click());
}

async function startCharts() {
  if (!("DecompressionStream" in window)) {
    const notice = "This browser is too old to draw this; the tables are complete.";
    for (const place of findAll("#plot, #map, #client-charts")) place.append(html("p", { class: "notice" }, notice));
    return;
  }
  const data = JSON.parse(await unpack("charts-data"));
  new Plot(find("#plot"), data);
  if (find("#map")) new HeatMap(find("#map"), data);
  if (find("#client-charts")) new ClientCharts(find("#client-charts"), data);
  startDownloads(data);
}

async function start() {
  startTheme();
  startTables();
  startPrinting();
  if (find("#charts-data")) await startCharts();
  document.documentElement.dataset.ready = "";
}

start();
