package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

func newTop() *cobra.Command {
	var flags topFlags
	c := &cobra.Command{
		Use:   "top [PATH]",
		Short: "Watch what a mount does, in a full-screen view or line by line",
		Long: `Top shows what a mount does now: the reads of each level, the hit ratio, the
share of the dataset that has copies, work in flight, what readers wait for, the
operations at the source, the peers and the plan. PATH is a mount point or a
path below one. Without it, top needs exactly one mount.

The kernel answers reads in mode passthrough, and reads from its page cache,
without the daemon. Of passthrough, top shows the sizes of the files that were
opened, in a column of its own. It shows nothing of the page cache.

The hit ratio is the share of the opens that a tier served. PLACED is the share
of the files of the dataset that have a copy. Until all directories were listed,
as by warmup, it is the share of the files known so far, as in "known:98%".
Waits are seconds that readers waited, per second, summed over the readers.

Keys:
  1 2 3 4 5, Tab     levels, waits and epochs, source, peers, warnings
  Up Down PgUp PgDn  scroll
  + -                a longer or a shorter interval
  p, Space           pause, go on
  q, Esc, Ctrl-C     quit

With --lines, top prints one line every interval, as vmstat does. With --json,
it prints one JSON object every interval: time, seconds (the length of the
interval), levels, opens, local_opens (those that a tier served), waits by
cause, operations of the source by kind, placed_files, known_files, names_known
(these are all files of the dataset), filling, queued, background, slowdown,
placed_per_second, peer_bytes and served_bytes. Rates are per second.`,
		Example: `  milkweed top /mnt/imagenet
  milkweed top --lines --interval 10s --count 6 /mnt/imagenet
  milkweed top --json /mnt/imagenet | jq -c '[.time, .local_opens, .opens]'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkInterval(flags.interval); err != nil {
				return err
			}
			point, _, err := warmupNames(args)
			if err != nil {
				return err
			}
			return flags.run(c.Context(), c.OutOrStdout(), point)
		},
	}
	c.Flags().DurationVarP(&flags.interval, "interval", "i", time.Second, "the time between two updates")
	c.Flags().BoolVar(&flags.lines, "lines", false, "print one line every interval")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print one JSON object every interval")
	c.Flags().IntVarP(&flags.count, "count", "n", 0, "with --lines or --json: end after `N` intervals")
	return c
}

// topFlags are the flags of the command top.
type topFlags struct {
	interval      time.Duration
	lines, asJSON bool
	count         int // 0: no end
}

func (flags topFlags) run(ctx context.Context, w io.Writer, point string) error {
	if flags.lines || flags.asJSON {
		return flags.print(ctx, w, point)
	}
	if flags.count != 0 {
		return &exit.Error{Code: exit.Usage, Err: errors.New("--count has no effect on the full-screen view"), Remedy: "Add --lines."}
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &exit.Error{Code: exit.Usage, Err: errors.New("the standard output is not a terminal"), Remedy: "Use --lines or --json."}
	}
	if first := take(ctx, point); first.err != nil {
		return first.err
	}
	return newTopModel(point, flags.interval).run(ctx)
}

// errEnough ends watch when everything is printed.
var errEnough = errors.New("enough")

// print prints a line, or a JSON object, every interval.
func (flags topFlags) print(ctx context.Context, w io.Writer, point string) error {
	n := 0
	err := watch(ctx, point, flags.interval, func(s sample) (err error) {
		switch {
		case s.err != nil:
			return s.err
		case !s.rated:
			return nil
		case flags.asJSON:
			err = printJSON(w, s.rates)
		default:
			err = printLine(w, s.rates, n%linesPerHeader == 0)
		}
		if n++; err == nil && n == flags.count {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		return nil // an interrupt is how it ends
	}
	return err
}

// linesPerHeader is the number of lines after which printLine prints the header again.
const linesPerHeader = 20

// printLine prints the rates of an interval, after a header if that is wanted.
func printLine(w io.Writer, p rates.Point, header bool) error {
	var names, values []string
	add := func(name, value string) {
		width := max(len(name), 9)
		names = append(names, fmt.Sprintf("%*s", width, name))
		values = append(values, fmt.Sprintf("%*s", width, value))
	}
	add("TIME", p.Time.Local().Format(time.TimeOnly))
	add("OPENS/s", rateOf(float64(p.Opens)/p.Seconds))
	add("HIT", share(p.HitRatio()))
	add("    PLACED", placed(p)) // with room for "known:100%"
	for _, l := range p.Levels {
		if l.Name != fillLevel {
			add(l.Name+"/s", bytesOf(l.Bytes))
		}
	}
	_, passthrough := p.Bytes()
	add("PASSTHROUGH/s", bytesOf(passthrough))
	add("SRC-OPS/s", rateOf(sum(p.Operations)))
	add("FILLING", count(p.Filling))
	add("QUEUED", count(p.Queued))
	for _, cause := range rates.Causes {
		add("W-"+strings.ToUpper(cause), waitOf(p.Waits[cause]))
	}
	if header {
		fmt.Fprintln(w, strings.Join(names, " "))
	}
	_, err := fmt.Fprintln(w, strings.Join(values, " "))
	return err
}

// rateOf formats a number of events per second.
func rateOf(n float64) string {
	if n > 0 && n < 9.95 {
		return fmt.Sprintf("%.1f", n)
	}
	return count(int64(n + 0.5))
}

// bytesOf formats a number of bytes per second.
func bytesOf(n float64) string {
	if n == 0 {
		return "0"
	}
	return strings.TrimSuffix(strings.ReplaceAll(size(int64(n)), " ", ""), "iB")
}

// waitOf formats seconds that were waited per second.
func waitOf(seconds float64) string {
	if seconds == 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f", seconds)
}

// share formats a share, if there is one.
func share(ratio float64, ok bool) string {
	if !ok {
		return "-"
	}
	if ratio > 0.995 && ratio < 1 {
		return "99%" // not all
	}
	return fmt.Sprintf("%.0f%%", 100*ratio)
}

// placed formats the share of the dataset that has copies as one word. If not all of its files are
// known, it says that the share is one of the known files.
func placed(p rates.Point) string {
	text := share(p.PlacedShare())
	if !p.NamesKnown && text != "-" {
		return "known:" + text
	}
	return text
}

// placedOf says of how many files the share is.
func placedOf(p rates.Point) string {
	if p.NamesKnown {
		return fmt.Sprintf("%s of %s", count(p.PlacedFiles), files(p.KnownFiles))
	}
	return fmt.Sprintf("%s of %s known files", count(p.PlacedFiles), count(p.KnownFiles))
}

// sum returns the sum of the values of a map.
func sum(values map[string]float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// maxHistory is the number of points for which the full-screen view has sparklines.
const maxHistory = 300

// A topModel is what the full-screen view shows.
type topModel struct {
	point    string
	interval time.Duration

	view   int // index of topViews
	scroll int // first row of the view that is shown
	paused bool

	now    sample        // the last one with a status
	before sample        // the one before it
	points []rates.Point // the latest last
	failed sample        // a sample without a status, if it is the last one
}

func newTopModel(point string, interval time.Duration) *topModel {
	return &topModel{point: point, interval: interval}
}

// add shows a sample.
func (m *topModel) add(s sample) {
	if s.err != nil {
		m.failed = s
		return
	}
	m.failed, m.before, m.now = sample{}, m.now, s
	if s.rated {
		m.points = append(m.points, s.rates)
		m.points = m.points[max(0, len(m.points)-maxHistory):]
	} else {
		m.points = nil // of another daemon
	}
}

// latest returns the last rates, which are zero before there are some.
func (m *topModel) latest() rates.Point {
	if len(m.points) == 0 {
		return rates.Point{}
	}
	return m.points[len(m.points)-1]
}

// series returns a value of each point.
func (m *topModel) series(value func(rates.Point) float64) []float64 {
	all := make([]float64, len(m.points))
	for i, p := range m.points {
		all[i] = value(p)
	}
	return all
}

// intervals are those that + and - choose from.
var intervals = []time.Duration{
	minInterval, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// changeInterval chooses the next longer interval, or the next shorter one.
func (m *topModel) changeInterval(longer bool) {
	i, exact := slices.BinarySearch(intervals, m.interval)
	switch {
	case longer && exact:
		i++
	case !longer:
		i--
	}
	m.interval = intervals[max(0, min(i, len(intervals)-1))]
	m.points = nil // a sparkline has one scale of time
}

// key handles a key, and reports whether top goes on. size is the number of rows that are shown of a view,
// and rows those that it has. It compares codes: the name of a key includes the modifiers, as in Ctrl+C.
func (m *topModel) key(e *tcell.EventKey, size, rows int) (goOn bool) {
	switch e.Key() {
	case tcell.KeyEsc, tcell.KeyCtrlC:
		return false
	case tcell.KeyTab, tcell.KeyRight:
		m.view, m.scroll = (m.view+1)%len(topViews), 0
	case tcell.KeyBacktab, tcell.KeyLeft:
		m.view, m.scroll = (m.view+len(topViews)-1)%len(topViews), 0
	case tcell.KeyUp:
		m.scroll--
	case tcell.KeyDown:
		m.scroll++
	case tcell.KeyPgUp:
		m.scroll -= size
	case tcell.KeyPgDn:
		m.scroll += size
	case tcell.KeyHome:
		m.scroll = 0
	case tcell.KeyRune:
		if !m.character(e.Str()) {
			return false
		}
	}
	m.scroll = max(0, min(m.scroll, rows-size))
	return true
}

// character handles a key with a character, and reports whether top goes on.
func (m *topModel) character(c string) (goOn bool) {
	switch c {
	case "q":
		return false
	case "p", " ":
		m.paused = !m.paused
	case "+", "=":
		m.changeInterval(true)
	case "-":
		m.changeInterval(false)
	default:
		if i := strings.Index("12345", c); i >= 0 && len(c) == 1 {
			m.view, m.scroll = i, 0
		}
	}
	return true
}
