import { render } from "preact";
import { App } from "./app";
import { follow } from "./catalog";
import "./models/history";

render(<App />, document.getElementById("app")!);
void follow();
