/** SQL text as statements: where each begins and ends. Strings, names in quotes and comments may hold semicolons. */

export interface Statement {
  text: string;
  from: number;
  to: number;
}

/** What a semicolon does not end: a string, a quoted name, a comment. Unclosed ones go on to the end. */
const SKIPPED = /'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$)|--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|;/g;

export function statementsOf(text: string): Statement[] {
  const found: Statement[] = [];
  let start = 0;
  for (const match of text.matchAll(SKIPPED)) {
    if (match[0] !== ";") continue;
    found.push(trimmed(text, start, match.index));
    start = match.index + 1;
  }
  found.push(trimmed(text, start, text.length));
  return found.filter((statement) => withoutComments(statement.text) !== "");
}

function trimmed(text: string, from: number, to: number): Statement {
  const part = text.slice(from, to);
  const begin = from + (part.length - part.trimStart().length);
  const inner = part.trim();
  return { text: inner, from: begin, to: begin + inner.length };
}

function withoutComments(text: string): string {
  return text.replace(SKIPPED, (skipped) => (/^(--|\/\*)/.test(skipped) ? " " : skipped)).trim();
}

/** The one that the cursor is in, or the last before it. */
export function statementAt(text: string, position: number): Statement | undefined {
  const statements = statementsOf(text);
  return statements.find(({ to }) => position <= to + 1) ?? statements.at(-1);
}

export function isSelect(text: string): boolean {
  return /^(select|from)\b/i.test(withoutComments(text));
}

/** Whether a text holds a secret that must not be kept. */
export function holdsPassword(text: string): boolean {
  return /\bpassword\b/i.test(text);
}
