package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// A step is how far a command is that takes long.
type step struct {
	text  string // the number of files or names, on one line
	bytes int64  // bytes done
	total int64  // bytes in total; 0: unknown
	state any    // everything, for JSON
}

// A display shows the progress of a command until end is called.
type display interface {
	show(step)
	end()
}

// newDisplay returns a display on w: a bar if w is a terminal, and else a log of lines, which are
// JSON if asJSON is set.
func newDisplay(w io.Writer, asJSON bool) display {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return newBar(f)
	}
	return newProgressLog(w, asJSON)
}

// A bar is a progress bar, or a spinner while the total is unknown.
type bar struct {
	w        io.Writer
	bar      *progressbar.ProgressBar
	hasTotal bool
}

func newBar(w io.Writer) *bar { return &bar{w: w, bar: makeBar(w, -1)} }

// makeBar returns a bar of total bytes, or a spinner if total is -1.
func makeBar(w io.Writer, total int64) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(20),
	)
}

func (b *bar) show(s step) {
	if s.total > 0 {
		if !b.hasTotal {
			b.bar.Clear()
			b.bar, b.hasTotal = makeBar(b.w, s.total), true
		}
		b.bar.ChangeMax64(s.total)
		s.bytes = min(s.bytes, s.total-1) // a full bar cannot become less full
	}
	b.bar.Describe(s.text)
	b.bar.Set64(s.bytes)
}

func (b *bar) end() { b.bar.Clear() }

// A progressLog prints a line after firstLine and then every linesEvery.
type progressLog struct {
	w      io.Writer
	asJSON bool
	next   time.Time // of the next line
	last   time.Time // of the last line, or of the start
	bytes  int64     // then
	rate   float64   // bytes per second, averaged over the last lines; 0: unknown
}

const (
	firstLine  = time.Second
	linesEvery = 10 * time.Second
)

func newProgressLog(w io.Writer, asJSON bool) *progressLog {
	now := time.Now()
	return &progressLog{w: w, asJSON: asJSON, next: now.Add(firstLine), last: now}
}

func (l *progressLog) show(s step) {
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	rate := float64(s.bytes-l.bytes) / now.Sub(l.last).Seconds()
	if l.rate > 0 {
		rate = (rate + l.rate) / 2
	}
	l.next, l.last, l.bytes, l.rate = now.Add(linesEvery), now, s.bytes, rate
	if l.asJSON {
		printJSON(l.w, s.state)
		return
	}
	fmt.Fprintln(l.w, s.line(rate))
}

func (l *progressLog) end() {}

// line returns the step on one line. rate is in bytes per second.
func (s step) line(rate float64) string {
	line := s.text
	switch {
	case s.total > 0:
		line += fmt.Sprintf(", %s of %s (%s)", size(s.bytes), size(s.total), percent(s.bytes, s.total))
	case s.bytes > 0:
		line += ", " + size(s.bytes)
	}
	if rate < 1 {
		return line
	}
	line += fmt.Sprintf(", %s/s", size(int64(rate)))
	if s.total > 0 {
		left := time.Duration(float64(s.total-s.bytes) / rate * float64(time.Second))
		line += fmt.Sprintf(", about %v left", left.Round(time.Second))
	}
	return line
}
