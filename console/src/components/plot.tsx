/** Lines over time, drawn by uPlot. A screen reader is told the latest values instead. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { shownTime, type Series } from "../series.ts";
import { colour, theme } from "../theme.ts";

export interface Line {
  label: string;
  /** A custom property of the style sheet, as `accent`. */
  colour: string;
}

interface PlotProps {
  title: string;
  series: Series;
  lines: Line[];
  format: (value: number | null) => string;
  /** Grows with each sample, so that it is drawn again. */
  version: number;
  height?: number;
}

const HEIGHT = 150;
const AXIS_WIDTH = 64;
const TIME_SPACE = 80; // from one time to the next: more than its eight figures take
const TIME_HALF = 30; // of the last time, which is written around its place
const POINT_SIZE = 5;

export function Plot(props: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const area = place.current!;
    const made = new uPlot(options(props, area.clientWidth), data(props.series), area);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: area.clientWidth, height: heightOf(props) }));
    watch.observe(area);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [props.series, theme.value]);
  useEffect(() => plot.current?.setData(data(props.series)), [props.version]);
  return (
    <figure class="plot">
      <figcaption>
        <span class="plot-title">{props.title}</span>
        <span class="legend">
          {props.lines.map((line, at) => (
            <span key={line.label}>
              <i class="swatch" style={{ background: `var(--${line.colour})` }} />
              {line.label} <b>{props.format(props.series.latest(at))}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={place} class="plot-area" role="img" aria-label={summary(props)} />
    </figure>
  );
}

function summary({ title, lines, series, format }: PlotProps): string {
  return `${title}: ${lines.map((line, at) => `${line.label} ${format(series.latest(at))}`).join(", ")}`;
}

function heightOf(props: PlotProps): number {
  return props.height ?? HEIGHT;
}

function data(series: Series): uPlot.AlignedData {
  return series.columns as uPlot.AlignedData;
}

/** Samples without one before or after them: no line leads there, so they are drawn as points. */
function lonely(plot: uPlot, at: number): number[] {
  const values = plot.data[at]!;
  const isGap = (index: number) => values[index] === null || values[index] === undefined;
  return [...values.keys()].filter((index) => !isGap(index) && isGap(index - 1) && isGap(index + 1));
}

function options(props: PlotProps, width: number): uPlot.Options {
  const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: heightOf(props),
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    padding: [8, TIME_HALF, 0, 0],
    scales: {
      x: { range: (plot) => shownTime(plot.data[0], Date.now() / 1000) }, // uPlot would give a single sample a day
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 28, space: TIME_SPACE, values: "{HH}:{mm}:{ss}" },
      { ...axis, size: AXIS_WIDTH, values: (_plot, ticks) => ticks.map(props.format) },
    ],
    series: [
      {},
      ...props.lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        fill: `${colour(line.colour)}18`,
        width: 1.5,
        points: { show: false, size: POINT_SIZE, fill: colour(line.colour), filter: lonely },
      })),
    ],
  };
}
