/**
 * The SQL editor: CodeMirror with tablecast's words and the names that there are.
 *
 * It lives in a shadow root. There CodeMirror adopts its style sheets instead of writing them into the page, so that the
 * page's policy need not allow inline styles.
 */

import {
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  completionKeymap,
  type CompletionSource,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { schemaCompletionSource, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState, StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, EditorView, keymap, lineNumbers, placeholder, type DecorationSet } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useLayoutEffect, useRef } from "preact/hooks";
import { TABLECAST } from "../sql/dialect.ts";
import type { Names } from "../sql/names.ts";
import type { Place } from "../sql/place.ts";

/** What a page does with its editor. */
export interface EditorHandle {
  text(): string;
  selection(): Place;
  replace(text: string): void;
  /** Underlines where an error is, until the text is changed; null takes it away. */
  mark(place: Place | null): void;
  goTo(place: Place): void;
}

interface EditorProps {
  label: string;
  initial: string;
  names: () => Promise<Names>;
  handle: { current: EditorHandle | null };
  onRun: () => void;
  onChange: (text: string) => void;
}

const markError = StateEffect.define<Place | null>();

const errorMark = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, change) {
    for (const effect of change.effects) if (effect.is(markError)) return decorated(effect.value);
    return change.docChanged ? Decoration.none : marks;
  },
  provide: (field) => EditorView.decorations.from(field),
});

function decorated(place: Place | null): DecorationSet {
  if (place === null || place.from >= place.to) return Decoration.none;
  return Decoration.set([Decoration.mark({ class: "cm-error" }).range(place.from, place.to)]);
}

const LOOK = EditorView.theme({
  "&": { height: "100%", fontSize: "13.5px", backgroundColor: "var(--surface)", color: "var(--text)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--faint)", border: "none", paddingLeft: "6px" },
  ".cm-placeholder": { color: "var(--faint)" },
  ".cm-error": {
    textDecoration: "underline wavy var(--bad) 1.5px",
    textUnderlineOffset: "4px",
    backgroundColor: "var(--bad-ground)",
  },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-ground) !important", outline: "none" },
  ".cm-tooltip": {
    border: "1px solid var(--line)",
    borderRadius: "6px",
    backgroundColor: "var(--raised)",
    color: "var(--text)",
    overflow: "hidden",
  },
  ".cm-tooltip-autocomplete ul li[aria-selected]": {
    backgroundColor: "var(--accent-ground)",
    color: "var(--accent-text)",
  },
  ".cm-completionLabel": { fontFamily: "var(--mono)", fontSize: "13px" },
  ".cm-completionDetail": { color: "var(--faint)" },
});

const COLOURS = syntaxHighlighting(
  HighlightStyle.define([
    { tag: tags.keyword, color: "var(--keyword)" },
    { tag: [tags.typeName, tags.standard(tags.name)], color: "var(--accent-text)" },
    { tag: [tags.string, tags.special(tags.string)], color: "var(--string)" },
    { tag: [tags.number, tags.bool, tags.null], color: "var(--number)" },
    { tag: [tags.lineComment, tags.blockComment], color: "var(--comment)", fontStyle: "italic" },
  ]),
);

export function Editor(props: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  // Before the page is drawn: buttons beside it use the handle.
  useLayoutEffect(() => {
    const root = host.current!.attachShadow({ mode: "open" });
    const made = new EditorView({ parent: root, root, state: stateOf(latest) });
    props.handle.current = handleOf(made);
    made.focus();
    return () => {
      props.handle.current = null;
      made.destroy();
    };
  }, []);
  return <div ref={host} class="editor" />;
}

function stateOf(latest: { current: EditorProps }): EditorState {
  const run = (view: EditorView) => {
    closeCompletion(view);
    latest.current.onRun();
    return true;
  };
  return EditorState.create({
    doc: latest.current.initial,
    extensions: [
      lineNumbers(),
      history(),
      bracketMatching(),
      closeBrackets(),
      autocompletion({ icons: false }),
      errorMark,
      LOOK,
      COLOURS,
      placeholder("SELECT …"),
      keymap.of([{ key: "Mod-Enter", run, preventDefault: true }]),
      keymap.of([...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap]),
      languageOf(() => latest.current.names()),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": latest.current.label, "aria-multiline": "true" }),
      EditorView.updateListener.of(
        (update) => update.docChanged && latest.current.onChange(update.state.doc.toString()),
      ),
    ],
  });
}

function languageOf(names: () => Promise<Names>): Extension {
  const completing = TABLECAST.language.data.of({ autocomplete: completionOf(names) });
  return [sql({ dialect: TABLECAST, upperCaseKeywords: true }), completing];
}

/** Names that are still on their way are waited for: what was typed before they came is completed, too. */
function completionOf(names: () => Promise<Names>): CompletionSource {
  let known: { names: Names; source: CompletionSource } | null = null;
  return async (context) => {
    const found = await names();
    if (known?.names !== found) {
      known = { names: found, source: schemaCompletionSource({ dialect: TABLECAST, schema: found }) };
    }
    return context.aborted ? null : known.source(context);
  };
}

function handleOf(view: EditorView): EditorHandle {
  const selection = () => ({ from: view.state.selection.main.from, to: view.state.selection.main.to });
  return {
    text: () => view.state.doc.toString(),
    selection,
    replace(text) {
      view.dispatch({
        changes: { from: 0, to: view.state.doc.length, insert: text },
        selection: { anchor: text.length },
      });
      view.focus();
    },
    mark: (place) => view.dispatch({ effects: markError.of(place) }),
    goTo(place) {
      view.dispatch({ selection: { anchor: place.from, head: place.to }, scrollIntoView: true });
      view.focus();
    },
  };
}
