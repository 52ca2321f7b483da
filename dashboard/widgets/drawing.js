// Plotly draws a figure and updates it in place.
const loaded = (url) => window.headroomPlotly ??= new Promise((done, fail) => {
  if (window.Plotly) { done(window.Plotly); return; }
  const early = document.querySelector(`script[src$="${url}"]`);  // of the page that serve.py sends
  const script = early ?? document.createElement("script");
  script.addEventListener("load", () => done(window.Plotly));
  script.addEventListener("error", fail);
  if (!early) document.head.append(Object.assign(script, { src: url }));
});
const camera = (Plotly, format, name) => ({
  name: `Save as ${format.toUpperCase()}`,
  icon: format === "png" ? Plotly.Icons.camera : Plotly.Icons.disk,
  click: (plot) => Plotly.downloadImage(plot, { format, scale: 2, filename: `headroom-${name}` }),
});
const REST = 40;  // ms; our choice: longer than the interval between repeated key presses
const LATEST = 500;  // ms after which a figure is drawn that waited for the one that follows sliders; our choice

// Figures with the same frame differ only in their bars, the bars' texts, and which bar is highlighted.
const frameOf = ({ data: [bars, totals], layout: { yaxis, ...layout } }) => {
  const { x, y, base, text, hovertext, marker, insidetextfont, ...bar } = bars;
  const { x: at, text: words, textposition, ...total } = totals;
  return JSON.stringify([layout, { ...yaxis, ticktext: yaxis.ticktext.length }, bar, total, at.length]);
};

// Plotly's style for each kind of part, keyed by the part's colours and line width in the figure.
const kindAt = ({ marker: { color, line } }, place) => [color[place], line.color[place], line.width[place]].join();
const stylesOf = ({ data: [bars] }, points) =>
  points.map((point, place) => [kindAt(bars, place), point.querySelector("path").getAttribute("style")]);

const write = (text, words) => {
  if (text.dataset.unformatted === words) return;
  text.dataset.unformatted = words;
  text.replaceChildren(...words.split(/(<b>.*<\/b>)/).map((piece) => {
    if (!piece.startsWith("<b>")) return piece;
    const bold = document.createElementNS(text.namespaceURI, "tspan");
    bold.setAttribute("style", "font-weight:bold");
    bold.textContent = piece.slice(3, -4);
    return bold;
  }));
};

// Plotly takes 15 ms to redraw the bars; moving them takes 1 ms. So Plotly redraws only when the slider rests.
const slide = (box, { data: [bars, totals], layout }) => {
  const { xaxis, yaxis } = box._fullLayout;
  const at = (axis, value) => Math.round(100 * axis.l2p(value)) / 100;
  const points = [...box.querySelectorAll(".barlayer .point")];
  const texts = [...box.querySelectorAll(".scatterlayer .textpoint text")];
  const names = [...box.querySelectorAll(".yaxislayer-above .ytick text")];
  if (points.length === box.slid.data[0].x.length) stylesOf(box.slid, points).forEach((it) => box.styles.set(...it));
  const model = box.querySelector(".barlayer .point text");
  const isKnown = bars.x.every((_, place) => box.styles.has(kindAt(bars, place)));
  if (!model || !isKnown || texts.length !== totals.x.length || names.length !== layout.yaxis.ticktext.length)
    return false;
  const middle = (shape) => shape.getAttribute("d").match(/,([^V]+)V([^H]+)H/).slice(1).reduce((a, b) => +a + +b) / 2;
  const modelAt = Number(model.getAttribute("transform").match(/,(.*)\)/)[1]);
  const below = modelAt - middle(model.parentElement.querySelector("path"));
  const fresh = model.cloneNode();
  delete fresh.dataset.unformatted;
  points.slice(bars.x.length).forEach((point) => point.remove());
  for (let place = points.length; place < bars.x.length; place += 1) {
    points.push(points[0].cloneNode(true));
    points[0].parentElement.append(points[place]);
  }
  bars.x.forEach((length, place) => {
    const point = points[place], path = point.querySelector("path");
    const begin = at(xaxis, bars.base[place]), end = at(xaxis, bars.base[place] + length);
    const [top, bottom] = [-1, 1].map((side) => at(yaxis, bars.y[place] + side * bars.width / 2));
    path.setAttribute("d", `M${begin},${top}V${bottom}H${end}V${top}Z`);
    path.setAttribute("style", box.styles.get(kindAt(bars, place)));
    point.querySelector("text")?.remove();
    if (!bars.text[place]) return;
    const text = fresh.cloneNode();
    write(text, bars.text[place]);
    text.style.fill = bars.insidetextfont.color[place];
    text.setAttribute("transform", `translate(${(begin + end) / 2},${(top + bottom) / 2 + below})`);
    point.append(text);
  });
  texts.forEach((text, place) => {
    text.setAttribute("x", at(xaxis, totals.x[place]));
    text.setAttribute("text-anchor", totals.textposition[place].endsWith("left") ? "end" : "start");
    write(text, totals.text[place]);
  });
  names.forEach((text, place) => write(text, layout.yaxis.ticktext[place]));
  return true;
};

// Bars of parts carry their labels: each its name and number, or what of them has room beside its bar's total. Where only
// one of them has room, a name that another bar has makes way for the number.
const ROOM = 10, TICK = 60; // px that a text leaves free in its part, and of the axis for a number; our choices
const pen = document.createElement("canvas").getContext("2d"), widths = new Map();
const widthOf = (words, font) => {
  const known = widths.get(font + words);
  if (known !== undefined) return known;
  pen.font = font;
  const width = pen.measureText(words).width;
  if (pen.font === font) widths.set(font + words, width);
  return width;
};
const isOfParts = ({ data: [bars] }) => bars?.name === "Memory";
const labelled = (box, figure) => {
  if (!isOfParts(figure)) return figure;
  const { data: [bars, ...others], layout } = figure, { margin, xaxis: { range: [, end], nticks } } = layout;
  const plot = box.clientWidth - margin.l - margin.r, pixels = plot / end, { size } = bars.insidetextfont;
  const font = `${size}px ${getComputedStyle(box).fontFamily}`;
  const at = others.findIndex((it) => it.name === "Total");
  if (at >= 0) others[at] = within(others[at], plot + margin.r, pixels, font);
  const totals = others[at];
  const covered = (place) => totals?.y.some((y, it) => y === bars.y[place] && totals.textposition[it].endsWith("left")
    && totals.x[it] - widthOf(plain(totals.text[it]), `bold ${font}`) / pixels < bars.base[place] + bars.x[place]);
  const fit = (place, ...said) => said.find((words) => widthOf(words, font) <= bars.x[place] * pixels - ROOM) ?? "";
  const whole = bars.text.map((number, place) =>
    number && !covered(place) ? fit(place, `${nameAt(bars, place)} ${number}`) : "");
  const named = new Set(whole.flatMap((words, place) => words ? [nameAt(bars, place)] : []));
  const text = bars.text.map((number, place) => {
    if (whole[place] || !number || covered(place)) return whole[place];
    const name = nameAt(bars, place);
    return named.has(name) ? fit(place, number) : fit(place, name, number);
  });
  const least = Math.max(end / nticks, TICK / pixels), power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((it) => it * power >= least), tickvals = [];
  for (let it = 0; it * step * pixels + TICK / 2 <= plot + margin.r; it += 1) tickvals.push(Number((it * step).toPrecision(6)));
  const ticktext = tickvals.map((it, place) => `${it}${place === tickvals.length - 1 ? " GiB" : ""}`);
  const xaxis = { ...layout.xaxis, tickvals, ticktext };
  return { data: [{ ...bars, text }, ...others], layout: { ...layout, xaxis } };
};
// A total without room beside its bar stands on it, and one without room on it beside it.
const within = (totals, right, pixels, font) => ({ ...totals, textposition: totals.textposition.map((side, at) => {
  const end = totals.x[at] * pixels, width = widthOf(plain(totals.text[at]), `bold ${font}`);
  return width > end ? "middle right" : end + width > right ? "middle left" : side;
}) });
const plain = (words) => words.replace(/<\/?b>/g, "");
const nameAt = ({ hovertext }, place) => hovertext[place].split(":")[0];

// A legend has the parts that no bar of its figures has room to name.
const explain = (of) => {
  const boxes = [...document.querySelectorAll(".hr-plot")].filter((it) => it.legend === of && it.slid);
  const legend = boxes.find((it) => it.wanted.name === of)?.parentElement.querySelector(".hr-legend");
  if (!legend) return;
  const named = new Set(), left = new Map(), drawn = boxes.map((it) => it.slid.data);
  for (const [bars] of drawn)
    bars.text.forEach((words, place) => { if (words.startsWith(nameAt(bars, place))) named.add(nameAt(bars, place)); });
  for (const [bars] of drawn) bars.hovertext.forEach((_, place) => {
    const name = nameAt(bars, place), { color, line } = bars.marker;
    if (!named.has(name)) left.set(name, `background:${color[place]};outline-color:${line.color[place]}`);
  });
  const entries = [...left].map(([name, style]) => ["hr-swatch", style, name]);
  if (drawn.some(([, ...others]) => others.some((it) => it.name === "Capacity"))) entries.push(["hr-line", "", "what the GPU has"]);
  const said = JSON.stringify(entries);
  if (legend.dataset.said === said) return;
  legend.dataset.said = said;
  legend.replaceChildren(...entries.map(([kind, style, name]) => {
    const entry = document.createElement("span"), sign = document.createElement("i");
    Object.assign(sign, { className: kind, style });
    entry.append(sign, name);
    return entry;
  }));
};

// A figure with points to pick is also walked by keyboard: arrow keys show a point, Enter picks it.
const walk = (Plotly, box, heard, pick) => {
  const BY = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 };
  let now = null;
  box.tabIndex = 0;
  box.addEventListener("keydown", (pressed) => {
    const by = BY[pressed.key], values = new Map();
    box._fullData.forEach(({ customdata, x }, curveNumber) => [...customdata ?? []].forEach((value, pointNumber) => {
      const key = JSON.stringify(value);
      if (value != null && !values.has(key)) values.set(key, { value, x: x?.[pointNumber] ?? pointNumber, curveNumber, pointNumber });
    }));
    const points = [...values].sort(([, one], [, other]) => one.x - other.x), at = points.findIndex(([key]) => key === now);
    if (by) {
      const [key, { curveNumber, pointNumber }] = points[at < 0 ? 0 : Math.max(0, Math.min(points.length - 1, at + by))];
      now = key;
      Plotly.Fx.hover(box, [{ curveNumber, pointNumber }]);
      const lines = box.querySelectorAll(".hoverlayer text:not(:has(.line)), .hoverlayer .line");
      heard.textContent = [...lines].map((it) => it.textContent).join(", ");
    } else if (pressed.key === "Enter" && at >= 0) pick(points[at][1].value);
    else return;
    pressed.preventDefault();
  });
  box.addEventListener("blur", () => Plotly.Fx.unhover(box));
};

export default function ({ data: [data], parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".hr-plot");
  if (isOld(box, data.order)) return;
  box.styles ??= new Map();
  box.legend = data.legend;
  const draw = (Plotly) => {
    const { figure } = box.wanted, drawn = JSON.stringify(figure), width = box.clientWidth;
    const ground = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
    if (drawn === box.drawn && ground === box.ground) return;
    const frame = data.follows && frameOf(figure);
    if (ground !== box.ground) box.styles.clear();
    const isAlike = frame && frame === box.frame && ground === box.ground && width === box.width;
    const shown = labelled(box, figure), isSlid = isAlike && slide(box, shown);
    Object.assign(box, { drawn, ground, frame, width, slid: shown });
    if (isOfParts(shown)) explain(box.legend);
    clearTimeout(box.resting);
    if (isSlid) box.resting = setTimeout(() => react(Plotly), REST);
    else react(Plotly);
  };
  const react = (Plotly) => {
    const { name, menu, picks } = box.wanted, { ground } = box;
    const figure = structuredClone(box.slid);  // Plotly modifies its input
    const modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7F8A94", activecolor: "#0072B2" };
    const look = { paper_bgcolor: ground, plot_bgcolor: ground, modebar };
    const font = { family: getComputedStyle(box).fontFamily };
    box.cameras ??= [["png", "svg"].map((format) => camera(Plotly, format, name))];
    const config = { displayModeBar: menu, displaylogo: false, modeBarButtons: box.cameras };
    Plotly.react(box, figure.data, { ...look, ...figure.layout, font }, config);
    if (picks && !box.picks) {
      box.picks = true;
      const pick = (value) => setTriggerValue("picked", value ?? null);
      box.on("plotly_click", ({ points: [point] }) => pick(point.customdata));
      walk(Plotly, box, parentElement.querySelector(".hr-heard"), pick);
    }
  };
  const begin = (Plotly) => data.follows ? draw(Plotly) : requestIdleCallback(() => draw(Plotly), { timeout: LATEST });
  box.show = (figure, alt, of) => {
    box.wanted = { ...data, figure, alt };
    box.style.minHeight = `${figure.layout.height}px`;
    box.setAttribute("aria-label", alt);
    if (of) box.dataset.setup = of;
    if (window.Plotly && (box.drawn || data.follows)) draw(window.Plotly);
    else loaded(data.script).then(begin, () => { box.textContent = box.wanted.alt; });
  };
  box.resized ??= new ResizeObserver(() => {
    if (window.Plotly && box.drawn && box.clientWidth && box.clientWidth !== box.width) {
      box.width = box.clientWidth;
      window.Plotly.Plots.resize(box).then(() => {
        if (!isOfParts(box.wanted.figure)) return;
        box.drawn = "";
        box.show(box.wanted.figure, box.wanted.alt);
      });
    }
  });
  box.resized.observe(box);
  box.follows = data.follows;
  if (!data.follows || !window.headroomRows?.answered()) box.show(data.figure, data.alt, data.of);
}
