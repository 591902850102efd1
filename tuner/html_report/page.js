// Unpacks Plotly, draws every figure in the page's colours, and lets the keyboard walk through the marks.
(async () => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const nodes = Object.keys(figures).map((name) => document.getElementById(name));
  const said = document.getElementById("said");

  for (const button of document.querySelectorAll(".commands button")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.nextElementSibling.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  // A custom property named anywhere in a figure becomes the colour that the page gives it.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      return value.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
  };

  // On paper a figure has a width of its own, as no window tells it one.
  const width = (node, paper) => (paper ? (node.closest(".pair") ? 340 : 700) : undefined);

  const draw = (paper = false) => {
    const style = getComputedStyle(document.documentElement);
    return Promise.all(nodes.map((node) => {
      const figure = coloured(figures[node.id], style);
      Object.assign(figure.layout, { dragmode: touch.matches ? false : "zoom", width: width(node, paper) });
      return Plotly.react(node, figure.data, figure.layout, {
        responsive: true, displaylogo: false, displayModeBar: "hover", doubleClick: "reset",
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      });
    }));
  };

  const marksOf = (node) => node.data.flatMap((trace, curveNumber) =>
    (trace.hovertext || []).map((text, pointNumber) => ({ curveNumber, pointNumber, text })));

  const step = (node, by) => {
    const marks = marksOf(node);
    if (!marks.length) return;
    const from = node.mark === undefined ? (by > 0 ? -1 : 0) : node.mark;
    node.mark = (from + by + marks.length) % marks.length;
    const { curveNumber, pointNumber, text } = marks[node.mark];
    const trace = node.data[curveNumber];
    const subplot = (trace.xaxis || "x") + (trace.yaxis || "y");
    Plotly.Fx.hover(node, [{ curveNumber, pointNumber }], [subplot]);
    said.textContent = text.replace(/<[^>]+>/g, " ");
  };

  const zoom = (node, factor) => {
    const axis = node._fullLayout.xaxis;
    const [low, high] = axis.range.map(Number);
    const half = ((high - low) / 2) * factor;
    const middle = (low + high) / 2;
    Plotly.relayout(node, { "xaxis.range": [middle - half, middle + half] });
  };

  const reset = (node) => {
    const { range } = figures[node.id].layout.xaxis;
    Plotly.relayout(node, range ? { "xaxis.range": [...range] } : { "xaxis.autorange": true });
  };

  const keys = {
    ArrowRight: (node) => step(node, 1), ArrowLeft: (node) => step(node, -1),
    "+": (node) => zoom(node, 0.6), "=": (node) => zoom(node, 0.6), "-": (node) => zoom(node, 1.7),
    0: reset, Escape: (node) => Plotly.Fx.unhover(node),
  };

  try {
    const script = document.createElement("script");
    script.textContent = await unpack(document.getElementById("plotly").textContent);
    document.head.append(script);
    await draw();
  } catch (error) {
    for (const node of nodes) node.textContent = `This browser cannot draw the figure (${error}); the tables hold the numbers.`;
    return;
  }
  for (const node of nodes) {
    node.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(node);
    });
  }
  dark.addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.paper = "yes";
    draw(true);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.paper;
    draw();
  });
  document.body.dataset.drawn = "yes";
})();
