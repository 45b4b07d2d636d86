// Package browser drives a headless Chromium for tests, by WebDriver, which is JSON over HTTP:
// https://www.w3.org/TR/webdriver2/.
package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The programs that a Browser needs. The Debian packages are chromium and chromium-driver.
const (
	driver   = "chromedriver"
	chromium = "chromium"
)

// startTimeout bounds the start of a program, and each command.
const startTimeout = 60 * time.Second

// A Browser is a window of a Chromium.
type Browser struct {
	t       testing.TB
	client  http.Client
	session string // URL
}

// Start starts a Chromium that ends with the test. Without Chromium it skips the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	drivertest.Need(t, "chromedriver", "chromium")
	b := &Browser{t: t, client: http.Client{Timeout: startTimeout}}
	base := b.startDriver()
	args := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(),
	}
	var started struct {
		SessionID string `json:"sessionId"`
	}
	b.session = base
	b.call(http.MethodPost, "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"browserName":             "chrome",
		"goog:chromeOptions":      map[string]any{"args": args, "perfLoggingPrefs": map[string]any{"enableNetwork": true}},
		"goog:loggingPrefs":       map[string]string{"browser": "ALL", "performance": "ALL"},
		"pageLoadStrategy":        "normal",
		"unhandledPromptBehavior": "dismiss",
	}}}, &started)
	b.session = base + "/session/" + started.SessionID
	t.Cleanup(func() { b.call(http.MethodDelete, "", nil, nil) })
	b.Open("about:blank")
	b.Requests() // of the page that a new tab has
	b.Console()
	return b
}

// startDriver starts the WebDriver server, and returns its URL.
func (b *Browser) startDriver() string {
	b.t.Helper()
	cmd := exec.Command(driver, "--port=0")
	home := b.t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home) // the folder of one that is killed goes with the test
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	port := make(chan string, 1)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if _, p, ok := strings.Cut(lines.Text(), "successfully on port "); ok {
				port <- strings.TrimSuffix(p, ".")
			}
		}
	}()
	b.t.Cleanup(func() {
		cmd.Process.Kill()
		<-drained
		cmd.Wait()
	})
	select {
	case p := <-port:
		return "http://127.0.0.1:" + p
	case <-drained:
		b.t.Fatalf("%s ended", driver)
	case <-time.After(startTimeout):
		b.t.Fatalf("%s has not started", driver)
	}
	return ""
}

// call sends a command, and decodes the value of the response.
func (b *Browser) call(method, path string, request, value any) {
	b.t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		if request == nil {
			request = struct{}{}
		}
		p, err := json.Marshal(request)
		if err != nil {
			b.t.Fatal(err)
		}
		body = bytes.NewReader(p)
	}
	r, err := http.NewRequest(method, b.session+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	response := struct{ Value json.RawMessage }{}
	if err := json.NewDecoder(resp.Body).Decode(&response); err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s", method, path, response.Value)
	}
	if value != nil {
		if err := json.Unmarshal(response.Value, value); err != nil {
			b.t.Fatalf("%s %s: %v: %s", method, path, err, response.Value)
		}
	}
}

// Open loads a page.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.call(http.MethodPost, "/url", map[string]string{"url": url}, nil)
}

// Eval decodes into value what a script returns. The script is the body of a function; a promise that
// it returns is awaited. value may be nil.
func (b *Browser) Eval(value any, script string, args ...any) {
	b.t.Helper()
	b.call(http.MethodPost, "/execute/sync", map[string]any{"script": script, "args": append([]any{}, args...)}, value)
}

// Text returns the text of the element that a CSS selector selects, as it is displayed.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	var text string
	b.Eval(&text, `const e = document.querySelector(arguments[0]); return e ? e.innerText.replace(/\s+/g, " ").trim() : "(missing)"`, selector)
	return text
}

// Eventually waits until a script returns true. It fails the test after a minute.
func (b *Browser) Eventually(what, script string, args ...any) {
	b.t.Helper()
	ok := false
	for end := time.Now().Add(startTimeout); !ok; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not after %v: %s", startTimeout, what)
		}
		b.Eval(&ok, script, args...)
	}
}

// Resize sets the size of the viewport.
func (b *Browser) Resize(width, height int) {
	b.t.Helper()
	b.devTools("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
}

// devTools sends a command of the DevTools protocol.
func (b *Browser) devTools(command string, params any) (result json.RawMessage) {
	b.t.Helper()
	b.call(http.MethodPost, "/goog/cdp/execute", map[string]any{"cmd": command, "params": params}, &result)
	return result
}

// Scheme sets the colour scheme that the user prefers: light or dark.
func (b *Browser) Scheme(scheme string) {
	b.t.Helper()
	b.devTools("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// Press presses and releases a key, such as "Tab" or "Enter", with its virtual key code.
func (b *Browser) Press(key string, code int) {
	b.t.Helper()
	event := map[string]any{"type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": code}
	b.devTools("Input.dispatchKeyEvent", event)
	event["type"] = "keyUp"
	b.devTools("Input.dispatchKeyEvent", event)
}

// Screenshot writes the whole page as a PNG into the folder that MILKWEED_SCREENSHOTS names, if it is
// set.
func (b *Browser) Screenshot(name string) {
	b.t.Helper()
	folder := os.Getenv("MILKWEED_SCREENSHOTS")
	if folder == "" {
		return
	}
	var shot struct{ Data string }
	if err := json.Unmarshal(b.devTools("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}), &shot); err != nil {
		b.t.Fatal(err)
	}
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Console returns the messages in the console of the page since the last call: errors of scripts,
// violations of the Content-Security-Policy, failed requests.
func (b *Browser) Console() []string {
	b.t.Helper()
	var entries []struct{ Level, Message string }
	b.call(http.MethodPost, "/se/log", map[string]string{"type": "browser"}, &entries)
	var all []string
	for _, e := range entries {
		all = append(all, e.Level+" "+e.Message)
	}
	return all
}

// Requests returns the URLs that the page has requested since the last call.
func (b *Browser) Requests() []string {
	b.t.Helper()
	var entries []struct{ Message string }
	b.call(http.MethodPost, "/se/log", map[string]string{"type": "performance"}, &entries)
	var urls []string
	for _, e := range entries {
		var event struct {
			Message struct {
				Method string
				Params struct{ Request struct{ URL string } }
			}
		}
		if err := json.Unmarshal([]byte(e.Message), &event); err != nil {
			b.t.Fatal(err)
		}
		if event.Message.Method == "Network.requestWillBeSent" {
			urls = append(urls, event.Message.Params.Request.URL)
		}
	}
	return urls
}

// A Violation is a rule of accessibility that a page breaks.
type Violation struct {
	ID    string
	Help  string
	Nodes []struct {
		Target         []any
		FailureSummary string
	}
}

// String returns the rule and the elements that break it.
func (v Violation) String() string {
	s := v.ID + ": " + v.Help
	for _, n := range v.Nodes {
		s += fmt.Sprintf("\n\t%v: %s", n.Target, n.FailureSummary)
	}
	return s
}

// Accessibility checks the page with axe-core, which .ci/deps.sh installs, and returns what it
// violates, also of the best practices.
func (b *Browser) Accessibility() []Violation {
	b.t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(cache, "milkweed-test", "axe.min.js")
	axe, err := os.ReadFile(file)
	if err != nil {
		drivertest.Skipf(b.t, "%v; `make deps` installs it", err)
	}
	b.Eval(nil, string(axe)+"; window.axe = axe")
	var violations []Violation
	b.Eval(&violations, `return axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations)`)
	return violations
}
