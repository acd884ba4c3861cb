/**
 * Rows of any number: a real table of which only the rows in sight are there.
 *
 * The arrow keys, Page Up and Down, Home and End move the current row; Enter opens it. Widths are set from the columns,
 * because rows that come and go while scrolling must not move them.
 */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { freshId } from "./page.tsx";

export interface GridColumn<T> {
  name: string;
  /** Under the name, in small: a type. */
  note?: string;
  cell: (row: T) => ComponentChildren;
  align?: "end";
  /** In characters. */
  width?: number;
}

export interface GridProps<T> {
  label: string;
  columns: GridColumn<T>[];
  rows: readonly T[];
  keyOf: (row: T, index: number) => string | number;
  rowClass?: (row: T) => string | undefined;
  onOpen?: (row: T) => void;
  /** Who has scrolled down keeps what they read under their eyes, while rows come above it and others go there. */
  keepsPlace?: boolean;
  maxHeight?: string;
}

const ROW_PX = 30; // as .grid td in style.css
const HEAD_PX = 30;
const SPARE_ROWS = 8; // above and below what is in sight, for smooth scrolling
const WIDTH_CHARS = 18;
const CHAR_PX = 8; // of the text of a cell, about

export function Grid<T>(props: GridProps<T>) {
  const area = useRef<HTMLDivElement>(null);
  const id = useSignal(freshId("grid")).value;
  const view = useSignal({ top: 0, height: 600 });
  const current = useSignal(-1);
  useLayoutEffect(() => watchView(area.current!, view), []);
  const { rows, columns } = props;
  useKeptPlace(area, props);
  const growing = growingOf(columns);
  const first = Math.max(0, Math.min(rows.length, Math.floor(view.value.top / ROW_PX)) - SPARE_ROWS);
  const last = Math.min(rows.length, Math.ceil((view.value.top + view.value.height) / ROW_PX) + SPARE_ROWS);
  const chosen = Math.min(current.value, rows.length - 1);

  const move = (to: number) => {
    current.value = Math.max(0, Math.min(rows.length - 1, to));
    showRow(area.current!, current.value);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const to = ledTo(event.key, chosen, rows.length, view.value.height);
    const row = rows[chosen];
    if (to !== undefined && rows.length > 0) move(to);
    else if (event.key === "Enter" && row !== undefined && props.onOpen) props.onOpen(row);
    else return;
    event.preventDefault();
  };
  const choose = (index: number) => {
    current.value = index;
    props.onOpen?.(rows[index]!);
  };

  return (
    <div ref={area} class="grid" style={{ maxHeight: props.maxHeight }}>
      <table
        role="grid"
        aria-label={props.label}
        aria-rowcount={rows.length + 1}
        aria-activedescendant={chosen >= 0 ? `${id}-${chosen}` : undefined}
        tabIndex={0}
        onKeyDown={onKeyDown}
        style={{ minWidth: `${totalWidth(columns)}px`, width: growing ? undefined : 0 }}
      >
        <Head columns={columns} growing={growing} />
        <tbody>
          {first > 0 && <Spacer rows={first} width={columns.length} />}
          {rows.slice(first, last).map((row, at) => (
            <GridRow
              key={props.keyOf(row, first + at)}
              grid={props}
              row={row}
              index={first + at}
              id={`${id}-${first + at}`}
              isChosen={first + at === chosen}
              onChoose={choose}
            />
          ))}
          {last < rows.length && <Spacer rows={rows.length - last} width={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

function Head<T>(props: { columns: GridColumn<T>[]; growing: GridColumn<T> | undefined }) {
  const { columns, growing } = props;
  return (
    <>
      <colgroup>
        {columns.map((column, at) => (
          <col key={at} style={{ width: column === growing ? undefined : `${widthOf(column)}px` }} />
        ))}
      </colgroup>
      <thead>
        <tr role="row" aria-rowindex={1}>
          {columns.map(({ name, note, align }, at) => (
            <th key={at} role="columnheader" scope="col" class={align}>
              {name} {note && <small>{note}</small>}
            </th>
          ))}
        </tr>
      </thead>
    </>
  );
}

interface GridRowProps<T> {
  grid: GridProps<T>;
  row: T;
  index: number;
  id: string;
  isChosen: boolean;
  onChoose: (index: number) => void;
}

function GridRow<T>({ grid, row, index, id, isChosen, onChoose }: GridRowProps<T>) {
  return (
    <tr
      id={id}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isChosen}
      class={`${grid.rowClass?.(row) ?? ""} ${grid.onOpen ? "opens" : ""}`}
      onClick={() => onChoose(index)}
    >
      {grid.columns.map(({ cell, align }, at) => (
        <td key={at} role="gridcell" class={align}>
          {cell(row)}
        </td>
      ))}
    </tr>
  );
}

/** Stands for rows that are out of sight. */
function Spacer(props: { rows: number; width: number }) {
  return (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={props.width} style={{ height: `${props.rows * ROW_PX}px` }} />
    </tr>
  );
}

/** The row that a key leads to from the current one. */
function ledTo(key: string, from: number, rows: number, height: number): number | undefined {
  const page = Math.max(1, Math.floor(height / ROW_PX) - 2);
  const steps: Record<string, number> = {
    ArrowDown: from + 1,
    ArrowUp: from - 1,
    PageDown: from + page,
    PageUp: from - page,
    Home: 0,
    End: rows - 1,
  };
  return steps[key];
}

function totalWidth<T>(columns: GridColumn<T>[]): number {
  return columns.reduce((sum, column) => sum + widthOf(column), 0);
}

function widthOf<T>(column: GridColumn<T>): number {
  return (column.width ?? WIDTH_CHARS) * CHAR_PX;
}

/** Takes the room that is left: the last of the widest texts, so that numbers stay beside what they belong to. Numbers alone take none. */
function growingOf<T>(columns: GridColumn<T>[]): GridColumn<T> | undefined {
  const texts = columns.filter(({ align }) => align !== "end");
  const widest = Math.max(...texts.map(widthOf));
  return texts.findLast((column) => widthOf(column) === widest);
}

function watchView(area: HTMLDivElement, view: { value: { top: number; height: number } }): () => void {
  const look = () => (view.value = { top: area.scrollTop, height: area.clientHeight });
  const sizes = new ResizeObserver(look);
  sizes.observe(area);
  area.addEventListener("scroll", look, { passive: true });
  return () => {
    sizes.disconnect();
    area.removeEventListener("scroll", look);
  };
}

function showRow(area: HTMLDivElement, index: number): void {
  const top = index * ROW_PX;
  if (top < area.scrollTop) area.scrollTop = top;
  else if (top + ROW_PX > area.scrollTop + area.clientHeight - HEAD_PX) {
    area.scrollTop = top + ROW_PX + HEAD_PX - area.clientHeight;
  }
}

/** Rows in sight are found again by their keys; the one that moved down most is one that stayed while others went on top. */
function useKeptPlace<T>(area: { current: HTMLDivElement | null }, props: GridProps<T>): void {
  const before = useRef<readonly T[]>(props.rows);
  useLayoutEffect(() => {
    const [old, { scrollTop, clientHeight }] = [before.current, area.current!];
    before.current = props.rows;
    if (!props.keepsPlace || old === props.rows || scrollTop === 0) return;
    const places = new Map(props.rows.map((row, at) => [props.keyOf(row, at), at]));
    const first = Math.floor(scrollTop / ROW_PX);
    const inSight = old.slice(first, Math.ceil((scrollTop + clientHeight) / ROW_PX));
    const moved = inSight.flatMap((row, at) => {
      const place = places.get(props.keyOf(row, first + at));
      return place === undefined ? [] : [place - (first + at)];
    });
    if (moved.length > 0) area.current!.scrollTop = scrollTop + Math.max(...moved) * ROW_PX;
  }, [props.rows]);
}
