/**
 * A picture of what feeds what: boxes in layers, from left to right, joined by lines. Where there is no room for that
 * the layers stand one below the other.
 */

import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { freshId } from "../components/index.ts";
import { fitted, layOut, type Link, type Node, type Placed } from "./flow_layout.ts";
import "./flow.css";

export interface FlowProps {
  title: string;
  /** The picture in words. */
  description: string;
  nodes: Node[];
  links: Link[];
}

const PADDING = 12; // of a box, left and right
const TITLE_CHAR_WIDTH = 7.1; // pixels, about
const NOTE_CHAR_WIDTH = 5.8;

export function Flow(props: FlowProps) {
  const area = useRef<HTMLDivElement>(null);
  const id = useSignal(freshId("flow")).value;
  const room = useSignal(1_000);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => (room.value = entry!.contentRect.width));
    watch.observe(area.current!);
    return () => watch.disconnect();
  }, []);
  const { boxes, lines, width, height } = layOut(props.nodes, props.links, room.value);
  return (
    <div ref={area} class="flow" tabIndex={0} role="region" aria-label={props.title}>
      <svg width={width} height={height} role="group" aria-labelledby={id} aria-describedby={`${id}-text`}>
        <title id={id}>{props.title}</title>
        <desc id={`${id}-text`}>{props.description}</desc>
        <g class="flow-lines" aria-hidden="true">
          {lines.map((path) => (
            <path key={path} d={path} />
          ))}
        </g>
        {boxes.map((box) => (
          <Box key={box.node.id} box={box} />
        ))}
      </svg>
    </div>
  );
}

function Box(props: { box: Placed }) {
  const { node, x, y, width, height } = props.box;
  const look = [node.kind.split(" ", 1)[0], node.tone].join(" "); // `filter · diff` looks as any filter
  const shape = (
    <g class={`flow-box ${look}`} transform={`translate(${x} ${y})`}>
      <rect width={width} height={height} rx="8" />
      <text class="flow-kind" x={PADDING} y="18">
        {node.kind}
      </text>
      <text class="flow-title" x={PADDING} y="36">
        {fitted(node.title, charsIn(width, TITLE_CHAR_WIDTH))}
      </text>
      <text class="flow-note" x={PADDING} y="53">
        {fitted(node.note ?? "", charsIn(width, NOTE_CHAR_WIDTH))}
      </text>
      <title>{[node.title, node.note].filter(Boolean).join(": ")}</title>
    </g>
  );
  return node.href === undefined ? shape : <a href={node.href}>{shape}</a>;
}

function charsIn(width: number, char: number): number {
  return Math.floor((width - 2 * PADDING) / char);
}
