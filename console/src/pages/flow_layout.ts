/** Where the boxes of a picture stand, and the lines between them. */

import type { Tone } from "../components/index.ts";

export interface Node {
  id: string;
  /** Counted from where things come from. */
  layer: number;
  /** What it is: a table, a filter, a topic. */
  kind: string;
  title: string;
  note?: string;
  tone?: Tone;
  href?: string;
}

export interface Link {
  from: string;
  to: string;
}

export interface Placed {
  node: Node;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Layout {
  boxes: Placed[];
  /** SVG paths. */
  lines: string[];
  width: number;
  height: number;
}

const WIDTH = 188;
const LEAST_WIDTH = 132; // below, the picture is scrolled instead
const HEIGHT = 64;
const BETWEEN_LAYERS = 56;
const BETWEEN_BOXES = 14;
const EDGE = 2; // for the border of a box
const MAX_BOXES = 12; // of one layer; the others are one box that says how many

export function layOut(all: Node[], links: Link[], room: number): Layout {
  const { nodes, renamed } = bounded(all);
  const layers = 1 + Math.max(0, ...nodes.map(({ layer }) => layer));
  const isAcross = layers * WIDTH + (layers - 1) * BETWEEN_LAYERS + 2 * EDGE <= room;
  const most = Math.max(1, ...Array.from({ length: layers }, (_, layer) => countOf(nodes, layer)));
  const boxWidth = isAcross ? WIDTH : narrowed(most, room);
  const [along, aside] = isAcross ? [boxWidth, HEIGHT] : [HEIGHT, boxWidth];
  const depth = Math.max(...Array.from({ length: layers }, (_, layer) => extent(countOf(nodes, layer), aside)));
  const seen = new Map<number, number>();
  const boxes = nodes.map((node): Placed => {
    const index = seen.get(node.layer) ?? 0;
    seen.set(node.layer, index + 1);
    const main = EDGE + node.layer * (along + BETWEEN_LAYERS);
    const cross = EDGE + (depth - extent(countOf(nodes, node.layer), aside)) / 2 + index * (aside + BETWEEN_BOXES);
    const [x, y] = isAcross ? [main, cross] : [cross, main];
    return { node, x, y, width: boxWidth, height: HEIGHT };
  });
  const length = layers * along + (layers - 1) * BETWEEN_LAYERS + 2 * EDGE;
  const [width, height] = isAcross ? [length, depth + 2 * EDGE] : [depth + 2 * EDGE, length];
  return { boxes, lines: linesOf(boxes, links, renamed, isAcross), width, height };
}

/** How wide boxes are of which so many stand side by side. */
function narrowed(boxes: number, room: number): number {
  const each = (room - 2 * EDGE - (boxes - 1) * BETWEEN_BOXES) / boxes;
  return Math.max(LEAST_WIDTH, Math.min(WIDTH, Math.floor(each)));
}

/** A text with at most so many characters. */
export function fitted(text: string, chars: number): string {
  return text.length <= chars ? text : `${text.slice(0, chars - 1)}…`;
}

function countOf(nodes: Node[], layer: number): number {
  return nodes.filter((node) => node.layer === layer).length;
}

function extent(boxes: number, size: number): number {
  return boxes * size + Math.max(0, boxes - 1) * BETWEEN_BOXES;
}

/** Layers of more boxes than anybody would look at end with one that stands for the rest. */
function bounded(all: Node[]): { nodes: Node[]; renamed: Map<string, string> } {
  const nodes: Node[] = [];
  const renamed = new Map<string, string>();
  for (const layer of new Set(all.map((node) => node.layer))) {
    const wanted = all.filter((node) => node.layer === layer);
    const shown = wanted.length > MAX_BOXES ? wanted.slice(0, MAX_BOXES - 1) : wanted;
    const rest = wanted.slice(shown.length);
    nodes.push(...shown);
    if (rest.length === 0) continue;
    nodes.push({ id: `rest ${layer}`, layer, kind: rest[0]!.kind, title: `and ${rest.length} more` });
    for (const { id } of rest) renamed.set(id, `rest ${layer}`);
  }
  return { nodes, renamed };
}

function linesOf(boxes: Placed[], links: Link[], renamed: Map<string, string>, isAcross: boolean): string[] {
  const places = new Map(boxes.map((box) => [box.node.id, box]));
  const paths = links.flatMap(({ from, to }) => {
    const [a, b] = [from, to].map((id) => places.get(renamed.get(id) ?? id));
    return a && b ? [isAcross ? across(a, b) : down(a, b)] : [];
  });
  return [...new Set(paths)];
}

function across(a: Placed, b: Placed): string {
  const [x1, y1, x2, y2] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
  const bend = (x2 - x1) / 2;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

function down(a: Placed, b: Placed): string {
  const [x1, y1, x2, y2] = [a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y];
  const bend = (y2 - y1) / 2;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}
