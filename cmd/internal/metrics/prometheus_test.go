package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const examples = "../../../examples/"

// run runs a program of the package prometheus.
func run(t *testing.T, words ...string) {
	t.Helper()
	drivertest.Need(t, "promtool")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = examples + "prometheus"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", words, err, out)
	}
}

// promtool accepts the example, and its alerts fire when they must.
func TestPrometheusRules(t *testing.T) {
	run(t, "promtool", "check", "config", "prometheus.yml")
	run(t, "promtool", "check", "rules", "milkweed.rules.yml")
	run(t, "promtool", "test", "rules", "milkweed.test.yml")
	rules, err := os.ReadFile(examples + "prometheus/milkweed.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(page), -1) {
		headings[strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = true
	}
	links := regexp.MustCompile(`runbook_url: \S+/docs/troubleshooting\.md#(\S+)`).FindAllStringSubmatch(string(rules), -1)
	if alerts := strings.Count(string(rules), "- alert:"); alerts == 0 || len(links) != alerts {
		t.Errorf("%d alerts have %d links", alerts, len(links))
	}
	for _, link := range links {
		if !headings[link[1]] {
			t.Errorf("docs/troubleshooting.md has no heading %s", link[1])
		}
	}
}

// A prometheusServer is a running Prometheus.
type prometheusServer struct {
	t   *testing.T
	url string
}

// startPrometheus starts a server with the rules of the example, which scrapes target.
func startPrometheus(t *testing.T, target string) *prometheusServer {
	t.Helper()
	drivertest.Need(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs(examples + "prometheus/milkweed.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: milkweed, static_configs: [{targets: [%q]}]}]\n", rules, target)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus:\n%s", log.String())
		}
	})
	return &prometheusServer{t, "http://" + address}
}

// query returns the number of series in the result of a query, now.
func (p *prometheusServer) query(query string) (series int, err error) {
	resp, err := http.Get(p.url + "/api/v1/query?" + url.Values{"query": {query}}.Encode())
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return len(answer.Data.Result), nil
}

// queries returns those of the table in examples/prometheus/README.md, those of the dashboard, and the names
// of recorded series.
func queries(t *testing.T) (all []string) {
	t.Helper()
	read := func(name string) string {
		data, err := os.ReadFile(examples + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]*\\? \\| `([^`]*)`").FindAllStringSubmatch(read("prometheus/README.md"), -1) {
		all = append(all, m[1])
	}
	for _, m := range regexp.MustCompile(`- record: (\S+)`).FindAllStringSubmatch(read("prometheus/milkweed.rules.yml"), -1) {
		all = append(all, m[1])
	}
	if len(all) < 14 {
		t.Fatalf("found %q", all)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read("grafana/milkweed.json")), &board); err != nil {
		t.Fatal(err)
	}
	before := len(all)
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr))
		}
	}
	if len(all)-before < 15 {
		t.Fatalf("the dashboard has %d queries", len(all)-before)
	}
	return all
}

// Every query of the examples has a result in a Prometheus that scrapes a mount which has served every kind of
// read.
func TestPrometheusQueries(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Prometheus")
	}
	target := httptest.NewServer(Handler(sample))
	defer target.Close()
	p := startPrometheus(t, strings.TrimPrefix(target.URL, "http://"))
	missing := make(map[string]string)
	for _, q := range queries(t) {
		missing[q] = "not asked"
	}
	for deadline := time.Now().Add(time.Minute); len(missing) > 0 && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		for q := range missing {
			switch n, err := p.query(q); {
			case err != nil:
				missing[q] = err.Error()
			case n == 0:
				missing[q] = "no series"
			default:
				delete(missing, q)
			}
		}
	}
	for q, why := range missing {
		t.Errorf("%s: %s", q, why)
	}
}
