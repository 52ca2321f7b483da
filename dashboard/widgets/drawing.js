// Plotly draws a figure, and updates it in place.
const loaded = (url) => window.headroomPlotly ??= new Promise((done, fail) => {
  const script = document.createElement("script");
  Object.assign(script, { src: url, onload: () => done(window.Plotly), onerror: fail });
  document.head.append(script);
});
const camera = (Plotly, format, name) => ({
  name: `Save as ${format.toUpperCase()}`,
  icon: format === "png" ? Plotly.Icons.camera : Plotly.Icons.disk,
  click: (plot) => Plotly.downloadImage(plot, { format, scale: 2, filename: `headroom-${name}` }),
});
const REST = 120;  // ms: ours, longer than from one pressed key to the next

// Two figures with one frame differ in how long their bars are, and in what is written on them.
const frameOf = ({ data, layout }) => {
  const traces = data.map(({ x, base, text, hovertext, ...rest }) => [rest, x.length]);
  return JSON.stringify([layout, traces]);
};

const middleOf = ([, top, bottom]) => (Number(top) + Number(bottom)) / 2;

// Plotly takes 15 ms to draw them, and moving them where they stand 1. So it draws them when they rest.
const slide = (box, { data: [bars, totals] }) => {
  const axis = box._fullLayout.xaxis, at = (gib) => Math.round(100 * axis.l2p(gib)) / 100;
  const points = [...box.querySelectorAll(".barlayer .point")];
  const texts = [...box.querySelectorAll(".scatterlayer .textpoint text")];
  const shapes = points.map((point) => point.querySelector("path"))
    .map((path) => path.getAttribute("d").match(/^M[^,]+,([^V]+)V([^H]+)H/));
  if (points.length !== bars.x.length || texts.length !== totals.x.length || !shapes.every(Boolean)) return false;
  const written = points.findIndex((point) => point.querySelector("text"));
  if (written < 0) return false;
  const model = points[written].querySelector("text").cloneNode();
  const below = Number(model.getAttribute("transform").match(/,(.*)\)/)[1]) - middleOf(shapes[written]);
  points.forEach((point, place) => {
    const base = bars.base[place], begin = at(base), end = at(base + bars.x[place]);
    const [, top, bottom] = shapes[place];
    point.querySelector("path").setAttribute("d", `M${begin},${top}V${bottom}H${end}V${top}Z`);
    point.querySelector("text")?.remove();
    if (!bars.text[place]) return;
    const text = model.cloneNode();
    text.textContent = bars.text[place];
    text.style.fill = bars.insidetextfont.color[place];
    text.setAttribute("transform", `translate(${(begin + end) / 2},${middleOf(shapes[place]) + below})`);
    point.append(text);
  });
  texts.forEach((text, place) => {
    const moved = axis.l2p(totals.x[place]) - axis.l2p(box.slid.data[1].x[place]);
    text.setAttribute("x", Number(text.getAttribute("x")) + moved);
    const words = totals.text[place], bold = text.querySelector("tspan");
    if (bold) bold.textContent = words.replace(/<.?b>/g, "").trim();
    else text.textContent = words;
  });
  return true;
};

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".hr-plot");
  const draw = (Plotly) => {
    const { figure } = box.wanted, drawn = JSON.stringify(figure), width = box.clientWidth;
    const ground = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
    if (drawn === box.drawn && ground === box.ground) return;
    const frame = data.follows && frameOf(figure);
    const isAlike = frame && frame === box.frame && ground === box.ground && width === box.width;
    const isSlid = isAlike && slide(box, figure);
    Object.assign(box, { drawn, ground, frame, width, slid: figure });
    clearTimeout(box.resting);
    if (isSlid) box.resting = setTimeout(() => react(Plotly), REST);
    else react(Plotly);
  };
  const react = (Plotly) => {
    const { name, menu, picks } = box.wanted, { ground } = box;
    const figure = JSON.parse(box.drawn);  // Plotly writes into what it is given
    const modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7F8A94", activecolor: "#0072B2" };
    const look = { paper_bgcolor: ground, plot_bgcolor: ground, modebar };
    const font = { family: getComputedStyle(box).fontFamily };
    box.cameras ??= [["png", "svg"].map((format) => camera(Plotly, format, name))];
    const config = { displayModeBar: menu, displaylogo: false, modeBarButtons: box.cameras, responsive: true };
    Plotly.react(box, figure.data, { ...look, ...figure.layout, font }, config);
    if (picks && !box.picks) {
      box.picks = true;
      box.on("plotly_click", ({ points: [point] }) => setTriggerValue("picked", point.customdata ?? null));
    }
  };
  box.show = (figure, alt) => {
    box.wanted = { ...data, figure, alt };
    box.style.minHeight = `${figure.layout.height}px`;
    box.setAttribute("aria-label", alt);
    if (window.Plotly) draw(window.Plotly);
    else loaded(data.script).then(draw, () => { box.textContent = box.wanted.alt; });
  };
  box.follows = data.follows;
  if (!data.follows || !window.headroomRows?.answered()) box.show(data.figure, data.alt);
}
