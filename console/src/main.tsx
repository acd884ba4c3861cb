/** The console: who is signed in decides between the sign-in page and the frame with its pages. */

import { effect } from "@preact/signals";
import { render } from "preact";
import { Frame } from "./frame.tsx";
import { listenForKeys } from "./keys.ts";
import { closeLive } from "./live.ts";
import { forgetSeries } from "./pages/sampled.ts";
import { isRestoring, me, notice, restore } from "./session.ts";
import SignIn from "./sign_in.tsx";
import "./style.css";
import "./theme.ts";

function App() {
  if (isRestoring.value) return <Restoring />;
  return me.value === null ? <SignIn /> : <Frame key={me.value.user} />;
}

function Restoring() {
  return (
    <main class="loading whole">
      <p role="status">{notice.value ?? "Signing in …"}</p>
    </main>
  );
}

effect(() => {
  if (me.value !== null) return;
  closeLive();
  forgetSeries();
});
void restore();
listenForKeys();
render(<App />, document.getElementById("app")!);
