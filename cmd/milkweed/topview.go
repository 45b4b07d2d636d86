package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

// A tone is how text looks.
type tone int

const (
	plain  tone = iota
	dim         // of less importance
	title       // the header of a table
	good        // as it should be
	warned      // needs attention
	bad         // a fault
	first       // the colors of series
	second
)

// A span is text in one tone.
type span struct {
	text string
	tone tone
}

// A row is one row of the screen.
type row []span

func (r row) String() string {
	var b strings.Builder
	for _, s := range r {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// textRow returns a row of plain text.
func textRow(format string, args ...any) row { return row{{fmt.Sprintf(format, args...), plain}} }

// A grid is a table whose first row is the header. Columns after the first one are aligned to the right,
// unless they are in left.
type grid struct {
	left  []int
	cells [][]span
}

func (g *grid) add(cells ...span) { g.cells = append(g.cells, cells) }

// header adds the names of the columns.
func (g *grid) header(names ...string) {
	var cells []span
	for _, name := range names {
		cells = append(cells, span{name, title})
	}
	g.add(cells...)
}

// rows returns the rows of the table.
func (g *grid) rows() []row {
	var widths []int
	for _, cells := range g.cells {
		for i, c := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var all []row
	for _, cells := range g.cells {
		var r row
		for i, c := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text))
			if i == 0 || slices.Contains(g.left, i) {
				c.text += pad
			} else {
				c.text = pad + c.text
			}
			r = append(r, c, span{"  ", plain})
		}
		all = append(all, r)
	}
	return all
}

// glyphs are the characters of bars and sparklines.
type glyphs struct {
	spark []string // from the lowest to the highest
	bar   []string // parts of a cell, the last one is a full one
	empty string
}

var (
	blocks = glyphs{
		spark: []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
		bar:   []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"},
		empty: "░",
	}
	ascii = glyphs{spark: []string{"_", ".", "-", "=", "+", "*", "#"}, bar: []string{"#"}, empty: "."}
)

// sparkline draws the last values in width cells, the latest at the right, from 0 to the highest one or to
// top, if that is not 0.
func (g glyphs) sparkline(values []float64, width int, top float64) string {
	values = values[max(0, len(values)-width):]
	if top == 0 {
		for _, v := range values {
			top = max(top, v)
		}
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", max(0, width-len(values))))
	for _, v := range values {
		if v <= 0 || top <= 0 {
			b.WriteByte(' ')
			continue
		}
		i := int(v / top * float64(len(g.spark)))
		b.WriteString(g.spark[min(i, len(g.spark)-1)])
	}
	return b.String()
}

// gauge draws a share of width cells.
func (g glyphs) gauge(share float64, width int) string {
	parts := int(max(0, min(share, 1))*float64(width*len(g.bar)) + 0.5)
	if parts == 0 && share > 0 {
		parts = 1
	}
	full := strings.Repeat(g.bar[len(g.bar)-1], parts/len(g.bar))
	if rest := parts % len(g.bar); rest > 0 {
		full += g.bar[rest-1]
	}
	return full + strings.Repeat(g.empty, width-utf8.RuneCountInString(full))
}

// A topView is one page of the full-screen view.
type topView struct {
	name string
	rows func(m *topModel, g glyphs, width int) []row
}

var topViews = []topView{
	{"levels", (*topModel).levelsView},
	{"waits", (*topModel).waitsView},
	{"source", (*topModel).sourceView},
	{"peers", (*topModel).peersView},
	{"warnings", (*topModel).warningsView},
}

// head returns the rows above a view.
func (m *topModel) head() []row {
	s := m.now.status
	if m.now.at.IsZero() {
		return []row{{{text(m.point), title}, {"  waiting for the daemon", dim}}, nil}
	}
	state := span{"ready", good}
	switch {
	case s.Draining:
		state = span{"draining", warned}
	case !s.Ready:
		state = span{"not ready", warned}
	}
	r := row{{text(m.point), title}, {"  ", plain}, state}
	r = append(r, span{fmt.Sprintf("  mode %s", s.Mode), plain})
	if s.Generation != "" {
		r = append(r, span{"  generation " + text(s.Generation), plain})
	}
	up := time.Duration(s.UptimeSeconds) * time.Second
	r = append(r, span{fmt.Sprintf("  up %v  every %v  %s", up, m.interval, m.now.at.Local().Format(time.TimeOnly)), dim})
	if m.paused {
		r = append(r, span{"  paused", warned})
	}
	rows := []row{r}
	if m.failed.err != nil {
		silent := m.failed.at.Sub(m.now.at).Round(time.Second)
		rows = append(rows, row{{fmt.Sprintf("no answer for %v: %s", silent, withoutRemedy(m.failed.err)), bad}})
	} else if s.StuckRequests > 0 {
		rows = append(rows, row{{plural(s.StuckRequests, "request waits", "requests wait") + " for more than a minute: see the log", bad}})
	}
	return append(rows, nil)
}

// withoutRemedy returns the first line of an error.
func withoutRemedy(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// foot returns the row below a view. more is the number of rows that are hidden below.
func (m *topModel) foot(more int) row {
	var r row
	if more > 0 {
		r = row{{fmt.Sprintf("%d more rows: Down  ", more), warned}}
	}
	for i, v := range topViews {
		t := dim
		if i == m.view {
			t = title
		}
		r = append(r, span{fmt.Sprintf("%d %s", i+1, v.name), t}, span{"  ", plain})
	}
	return append(r, span{"p pause  +/- interval  q quit", dim})
}

// labelled returns rows with a name, a value and a sparkline each.
type labelled struct {
	rows [][]span
}

func (l *labelled) add(name, value string, spark string, t tone, note string) {
	l.rows = append(l.rows, []span{{name, plain}, {value, plain}, {spark, t}, {note, dim}})
}

func (l *labelled) all() []row {
	g := grid{left: []int{2, 3}, cells: l.rows}
	return g.rows()
}

// sparkWidth returns the width of sparklines on a screen.
func sparkWidth(width int) int { return max(10, min(width-64, 120)) }

// levelsView shows the levels, and the rates of the whole mount.
func (m *topModel) levelsView(g glyphs, width int) []row {
	s, p := m.now.status, m.latest()
	t := grid{left: []int{1, 10}}
	t.header("LEVEL", "FULL", "USED", "QUOTA", "FILES", "OPENS/s", "READS/s", "BYTES/s", "PASSTHROUGH/s", "ERRORS", "HEALTH")
	for i, l := range m.levels() {
		r := rates.Level{}
		if i < len(p.Levels) {
			r = p.Levels[i]
		}
		t.add(m.levelRow(g, s, l, r)...)
	}
	rows := append(t.rows(), nil)
	w := sparkWidth(width)
	var l labelled
	read, passthrough := p.Bytes()
	l.add("read", bytesOf(read)+"/s", g.sparkline(m.series(func(p rates.Point) float64 { r, _ := p.Bytes(); return r }), w, 0), first, "through the daemon")
	if s.Mode == string(config.Passthrough) {
		l.add("passthrough", bytesOf(passthrough)+"/s", g.sparkline(m.series(func(p rates.Point) float64 { _, b := p.Bytes(); return b }), w, 0), first, "sizes of the files opened")
	}
	l.add("opens", rateOf(perSecond(p.Opens, p))+"/s", g.sparkline(m.series(func(p rates.Point) float64 { return perSecond(p.Opens, p) }), w, 0), first, "")
	l.add("hit ratio", share(p.HitRatio()), g.sparkline(m.series(func(p rates.Point) float64 { r, ok := p.HitRatio(); return orZero(r, ok) }), w, 1), second, "opens that a tier served")
	l.add("placed", placed(p), g.sparkline(m.series(func(p rates.Point) float64 { r, ok := p.PlacedShare(); return orZero(r, ok) }), w, 1), second,
		placedOf(p))
	l.add("source", rateOf(sum(p.Operations))+" ops/s", g.sparkline(m.series(func(p rates.Point) float64 { return sum(p.Operations) }), w, 0), first, "")
	l.add("waits", waitOf(sum(p.Waits))+" s/s", g.sparkline(m.series(func(p rates.Point) float64 { return sum(p.Waits) }), w, 0), first, mainCause(p))
	l.add("in flight", plural(s.Fills.InFlight, "copy", "copies"), g.sparkline(m.series(func(p rates.Point) float64 { return float64(p.Filling) }), w, 0), first,
		fmt.Sprintf("%s queued, %s made per second", count(s.Fills.Queued), rateOf(p.Placed)))
	rows = append(rows, l.all()...)
	rows = append(rows, nil)
	if s.Plan.StreamCount > 0 {
		rows = append(rows, textRow("plan       %s", planSummary(s.Plan)))
	}
	if s.Peers != nil {
		rows = append(rows, textRow("peers      %s", peersLine(*s.Peers)))
	}
	if s.Window.Size > 0 {
		rows = append(rows, textRow("window     %s", windowLine(s.Window)))
	}
	if n := len(s.Warnings); n > 0 {
		rows = append(rows, warningRow(s.Warnings[n-1]))
	}
	return rows
}

// orZero returns v, or 0 if there is no value.
func orZero(v float64, ok bool) float64 {
	if !ok {
		return 0
	}
	return v
}

// perSecond returns the rate of a number of events in the interval of p.
func perSecond(n int64, p rates.Point) float64 {
	if p.Seconds == 0 {
		return 0
	}
	return float64(n) / p.Seconds
}

// levels returns the names of the levels in the order of rates.Point.Levels.
func (m *topModel) levels() []string {
	var names []string
	for _, l := range rates.Totals(&m.now.status) {
		names = append(names, l.Name)
	}
	return names
}

// levelRow returns the row of a level in levelsView.
func (m *topModel) levelRow(g glyphs, s control.Status, name string, r rates.Level) []span {
	cell := func(text string) span { return span{text, plain} }
	cells := []span{cell(name), cell(""), cell(""), cell(""), cell(""),
		cell(rateOf(r.Opens)), cell(rateOf(r.Reads)), cell(bytesOf(r.Bytes)), cell(bytesOf(r.Passthrough)), cell(""), cell("")}
	switch name {
	case fillLevel:
		cells[6], cells[7], cells[10] = cell(""), cell(""), span{"copies in flight", dim}
	case sourceLevel:
		cells[9], cells[10] = errorCell(s.Source.Errors), span{text(s.Source.Path), dim}
	case peersLevel:
		cells[9], cells[10] = errorCell(s.Peers.Failovers), cell(fmt.Sprintf("%s of %s up", count(s.Peers.Up), count(s.Peers.Roster.Nodes-1)))
	}
	i := slices.IndexFunc(s.Tiers, func(t control.Tier) bool { return t.Name == name })
	if i < 0 {
		return cells
	}
	t := s.Tiers[i]
	if t.QuotaBytes > 0 {
		cells[1] = span{g.gauge(float64(t.UsedBytes)/float64(t.QuotaBytes), 12) + fmt.Sprintf(" %4s", percent(t.UsedBytes, t.QuotaBytes)), second}
	}
	cells[2], cells[3], cells[4] = cell(size(t.UsedBytes)), cell(size(t.QuotaBytes)), cell(count(t.Files))
	cells[9], cells[10] = errorCell(t.Errors+t.Corrupt), span{health(t.Health, t.Reason), healthTone(t.Health)}
	return cells
}

func errorCell(n int64) span {
	if n > 0 {
		return span{count(n), warned}
	}
	return span{"0", dim}
}

func healthTone(h control.Health) tone {
	switch h {
	case control.Healthy:
		return good
	case control.Scanning:
		return plain
	case control.Down:
		return bad
	}
	return warned
}

// mainCause names the cause for which readers wait most.
func mainCause(p rates.Point) string {
	all := sum(p.Waits)
	if all == 0 {
		return "seconds that readers waited, per second"
	}
	most := slices.MaxFunc(rates.Causes, func(a, b string) int { return cmp.Compare(p.Waits[a], p.Waits[b]) })
	return fmt.Sprintf("mostly for: %s (%.0f%%)", most, 100*p.Waits[most]/all)
}

// waitsView shows what readers wait for, and the last epochs.
func (m *topModel) waitsView(g glyphs, width int) []row {
	s, p := m.now.status, m.latest()
	total := make(map[string]float64)
	for _, w := range s.Waits {
		total[w.Cause] += w.Seconds
	}
	t := grid{left: []int{3}}
	t.header("WAITS FOR", "NOW", "SINCE THE START", "")
	for _, cause := range rates.Causes {
		t.add(span{cause, plain}, span{waitOf(p.Waits[cause]) + " s/s", plain}, span{rounded(total[cause]), plain},
			span{g.sparkline(m.series(func(p rates.Point) float64 { return p.Waits[cause] }), sparkWidth(width), m.highestWait()), first})
	}
	rows := append(t.rows(), row{{"Seconds that readers waited, summed over the readers. The sparklines have one scale.", dim}}, nil)
	e := grid{left: []int{7}}
	e.header("EPOCH", "BEGAN", "TOOK", "FILES", "HIT", "WAITED", "", "BYTES READ")
	longest := 0.0
	shown := s.Epochs[max(0, len(s.Epochs)-12):]
	for _, epoch := range shown {
		longest = max(longest, epoch.Seconds)
	}
	for i := len(s.Epochs) - len(shown); i < len(s.Epochs); i++ {
		epoch := s.Epochs[i]
		waited := 0.0
		for _, w := range epoch.Waits {
			waited += w.Seconds
		}
		bar := ""
		if longest > 0 {
			bar = g.gauge(epoch.Seconds/longest, 16)
		}
		e.add(span{epochName(s, i), plain}, span{epoch.Began.Local().Format(time.TimeOnly), dim}, span{rounded(epoch.Seconds), plain}, span{count(epoch.Files), plain},
			span{share(epochHits(s, epoch)), plain}, span{rounded(waited), plain}, span{bar, first}, span{bytesRead(epoch), dim})
	}
	if len(shown) == 0 {
		return append(rows, row{{"No epoch yet: a job has to open 8 files.", dim}})
	}
	return append(rows, e.rows()...)
}

// highestWait returns the longest wait for one cause in the points.
func (m *topModel) highestWait() (most float64) {
	for _, p := range m.points {
		for _, w := range p.Waits {
			most = max(most, w)
		}
	}
	return most
}

// epochHits returns the share of the opens of an epoch that a tier served.
func epochHits(s control.Status, e control.Epoch) (ratio float64, ok bool) {
	local, all := s.LocalOpens(e)
	return float64(local) / float64(all), all > 0
}

// sourceView shows the operations at the source.
func (m *topModel) sourceView(g glyphs, width int) []row {
	s, p := m.now.status, m.latest()
	counts := rates.Operations(&s)
	t := grid{left: []int{3}}
	t.header("OPERATION", "NOW", "SINCE THE START", "")
	for _, kind := range []string{"open", "read", "stat", "readdir", "readlink", "xattr", "acl", "holes"} {
		if counts[kind] == 0 {
			continue
		}
		t.add(span{kind, plain}, span{rateOf(p.Operations[kind]) + "/s", plain}, span{count(counts[kind]), plain},
			span{g.sparkline(m.series(func(p rates.Point) float64 { return p.Operations[kind] }), sparkWidth(width), 0), first})
	}
	rows := append(t.rows(), nil)
	var l labelled
	l.add("latency", fmt.Sprintf("%.1f ×", p.Slowdown), g.sparkline(m.series(func(p rates.Point) float64 { return p.Slowdown }), sparkWidth(width), 0), first, "of that of an idle source")
	l.add("background", plural(s.Fills.Background, "block", "blocks"), g.sparkline(m.series(func(p rates.Point) float64 { return float64(p.Background) }), sparkWidth(width), 0), first,
		fmt.Sprintf("in flight, of at most %s", count(s.Fills.BackgroundLimit)))
	rows = append(rows, l.all()...)
	rows = append(rows, nil,
		textRow("errors     %s", count(s.Source.Errors)),
		textRow("open       %s", plural(s.Source.IdleHandles, "idle handle", "idle handles")))
	if s.Source.RacyFiles > 0 {
		rows = append(rows, textRow("racy       %s changed recently and not copied yet", files(s.Source.RacyFiles)))
	}
	if s.Fills.Stalled > 0 {
		rows = append(rows, row{{"stalled    " + plural(s.Fills.Stalled, "request hangs", "requests hang"), warned}})
	}
	if q := s.Source.Requests; q != nil {
		requests, total := byKind(&s, "source_requests_total")
		rows = append(rows, textRow("bucket     %s requests: %s; %s received; %s, %s throttled", count(total), requests, size(q.Bytes),
			plural(q.Retries, "retry", "retries"), count(q.Throttled)))
	}
	if sweeps, total := byKind(&s, "sweep_operations_total"); total > 0 {
		rows = append(rows, textRow("sweep      %s of the operations: %s; %s found", count(total), sweeps, plural(s.Sweep.Changes, "change", "changes")))
	}
	return rows
}

// peersView shows the other nodes.
func (m *topModel) peersView(g glyphs, width int) []row {
	s, p := m.now.status, m.latest()
	if s.Peers == nil {
		return []row{{{"This mount shares its tiers with no other node. See docs/peers.md.", dim}}}
	}
	var l labelled
	l.add("received", bytesOf(p.PeerBytes)+"/s", g.sparkline(m.series(func(p rates.Point) float64 { return p.PeerBytes }), sparkWidth(width), 0), first, "from other nodes")
	l.add("served", bytesOf(p.ServedBytes)+"/s", g.sparkline(m.series(func(p rates.Point) float64 { return p.ServedBytes }), sparkWidth(width), 0), second, "to other nodes")
	rows := append(l.all(), nil)
	t := grid{left: []int{1, 2}}
	t.header("NODE", "STATE", "ADDRESS", "READS", "RECEIVED", "SERVED", "FAILOVERS", "MISSES")
	for _, n := range s.Peers.Nodes {
		state := span{"up", good}
		if !n.Up {
			state = span{"down", bad}
		}
		t.add(span{text(n.Name), plain}, state, span{n.Address, dim}, span{count(n.Reads), plain}, span{size(n.Bytes), plain},
			span{size(n.ServedBytes), plain}, errorCell(n.Failovers), span{count(n.Missed()), plain})
	}
	rows = append(rows, t.rows()...)
	if hidden := s.Peers.Roster.Nodes - 1 - int64(len(s.Peers.Nodes)); hidden > 0 {
		rows = append(rows, textRow("%s more: `milkweed peers` lists them.", plural(hidden, "node", "nodes")))
	}
	return rows
}

// warningsView shows the warnings of the log, and work of the daemon besides reads.
func (m *topModel) warningsView(glyphs, int) []row {
	s := m.now.status
	var rows []row
	for _, w := range slices.Backward(s.Warnings) {
		rows = append(rows, warningRow(w))
	}
	if len(rows) == 0 {
		rows = append(rows, row{{"No warning in the log since the start.", good}})
	}
	rows = append(rows, nil, textRow("scrub      %s", scrubStatus(s.Scrub)))
	if s.Exchange.ID != "" {
		rows = append(rows, textRow("exchange   %s", exchangeSummary(s.Exchange)))
	}
	if s.Crashes > 0 || s.Panics > 0 {
		rows = append(rows, row{{fmt.Sprintf("faults     %s, %s of the daemon: see the log", plural(s.Crashes, "crash", "crashes"), plural(s.Panics, "panic", "panics")), bad}})
	}
	return rows
}

// warningRow returns the row of a warning.
func warningRow(w control.Warning) row {
	t := warned
	if w.Level == "ERROR" {
		t = bad
	}
	line := w.Message
	if w.Tier != "" {
		line = w.Tier + ": " + line
	}
	if w.Count > 1 {
		line += fmt.Sprintf(" (%s times)", count(w.Count))
	}
	return row{{w.Time.Local().Format(time.DateTime) + "  ", dim}, {line, t}}
}
