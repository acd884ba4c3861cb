/** What is around every page: the menu, how the connection is, who is signed in. */

import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Confirm } from "./components/confirm.tsx";
import { Mark } from "./components/mark.tsx";
import { Failure, Loading } from "./components/states.tsx";
import { Toasts } from "./components/toasts.tsx";
import { asApiError, type ApiError } from "./errors.ts";
import { KeysHelp } from "./keys_help.tsx";
import { isHelpOpen } from "./keys.ts";
import { connection } from "./live.ts";
import { offered, PAGES, type PageEntry } from "./pages/index.ts";
import { href, route } from "./router.ts";
import { me, signOut } from "./session.ts";
import { switchTheme, theme } from "./theme.ts";

export function Frame() {
  const pages = offered();
  const page = route.value.page === "" ? pages[0] : pages.find(({ id }) => id === route.value.page);
  useFocusAfterMoving(page?.id);
  const menu = useMenuInSight(page?.id);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={skipToMain}>
        Skip to the page
      </a>
      <aside>
        <div class="side">
          <a class="brand" href={href("")} aria-label="tablecast, the first page">
            <Mark size={22} />
            tablecast
          </a>
          <nav aria-label="Pages" ref={menu}>
            {pages.map(({ id, title, key }) => (
              <a key={id} href={href(id)} aria-current={id === page?.id ? "page" : undefined} title={`g ${key}`}>
                {title}
              </a>
            ))}
          </nav>
          <Account />
        </div>
      </aside>
      <main id="main" tabIndex={-1}>
        <Offline />
        {page === undefined ? <NoSuchPage /> : <Loaded key={page.id} page={page} />}
      </main>
      <Confirm />
      <Toasts />
      {isHelpOpen.value && <KeysHelp />}
    </div>
  );
}

function Account() {
  const other = theme.value === "dark" ? "light" : "dark";
  return (
    <div class="account">
      <span class="who" title={`signed in as ${me.value!.user}, role ${me.value!.role}`}>
        <b>{me.value!.user}</b> <small>{me.value!.role}</small>
      </span>
      <button
        type="button"
        class="quiet small"
        onClick={() => (isHelpOpen.value = true)}
        aria-label="Keys"
        title="Keys (?)"
      >
        ?
      </button>
      <button
        type="button"
        class="quiet small"
        onClick={switchTheme}
        aria-label={`Switch to ${other}`}
        title={`Switch to ${other}`}
      >
        {theme.value === "dark" ? "☀" : "☾"}
      </button>
      <button type="button" class="quiet small" onClick={() => signOut()}>
        Sign out
      </button>
    </div>
  );
}

function Offline() {
  if (connection.value !== "waiting") return null;
  return (
    <p class="offline" role="status">
      The connection is lost: what you see is as of then. Trying again …
    </p>
  );
}

function NoSuchPage() {
  const exists = PAGES.some(({ id }) => id === route.value.page);
  return (
    <div class="page">
      <h1>{exists ? "Not for your role" : "There is no such page"}</h1>
      <p>{exists ? `The role ${me.value!.role} is not offered this page.` : "The menu has those that there are."}</p>
    </div>
  );
}

const loaded = signal(new Map<string, ComponentType>());
const failed = signal<ApiError | null>(null);

/** A page's code comes when it is first opened. */
function Loaded(props: { page: PageEntry }) {
  const { id, load } = props.page;
  useEffect(() => {
    if (!loaded.value.has(id)) fetchPage(id, load);
  }, [id]);
  const Found = loaded.value.get(id);
  if (Found !== undefined) return <Found />;
  if (failed.value === null) return <Loading />;
  return <Failure error={failed.value} title="This page could not be loaded" retry={() => location.reload()} />;
}

function fetchPage(id: string, load: PageEntry["load"]): void {
  load().then(
    (module) => (loaded.value = new Map(loaded.value).set(id, module.default)),
    (error: unknown) => (failed.value = asApiError(error)),
  );
}

/** Who moved to another page goes on there with the keyboard. */
function useFocusAfterMoving(id: string | undefined): void {
  const before = useRef(id);
  useEffect(() => {
    if (before.current !== id) document.getElementById("main")?.focus();
    before.current = id;
  }, [id]);
}

/** On a narrow screen the menu is longer than its row: the part with the page's own name is shown. */
function useMenuInSight(id: string | undefined) {
  const menu = useRef<HTMLElement>(null);
  useEffect(() => {
    menu.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [id]);
  return menu;
}

/** A link to #main would be taken for a route. */
function skipToMain(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
