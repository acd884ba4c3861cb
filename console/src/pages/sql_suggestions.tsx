/** What to type first, by what the role may. */

import { Panel } from "../components/index.ts";
import type { Action } from "../roles.ts";
import { may } from "../session.ts";

const SUGGESTED: { text: string; about: string; needs: Action }[] = [
  { text: "SHOW TABLES", about: "the tables that there are", needs: "run sql" },
  { text: "SELECT * FROM system.topics", about: "the topics; try it with Live", needs: "see system tables" },
  {
    text: "SELECT topic, group_id, sum(lag) AS lag FROM system.topic_groups GROUP BY ALL ORDER BY lag DESC",
    about: "who is behind",
    needs: "see system tables",
  },
  {
    text: "CREATE NAMESPACE IF NOT EXISTS app;\nCREATE TABLE app.notes (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), text TEXT);",
    about: "a first table",
    needs: "define tables and topics",
  },
];

export function Suggestions(props: { onTake: (text: string) => void }) {
  return (
    <Panel title="To begin with">
      <ul class="runs">
        {SUGGESTED.filter(({ needs }) => may(needs)).map(({ text, about }) => (
          <li key={text}>
            <button type="button" class="quiet" onClick={() => props.onTake(text)}>
              <code>{text}</code>
              <span>{about}</span>
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
