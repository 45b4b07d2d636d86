package main

import (
	"context"
	"fmt"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// styles are those of the tones. They leave the background, and most text, to the terminal.
var styles = map[tone]tcell.Style{
	plain:  tcell.StyleDefault,
	dim:    tcell.StyleDefault.Dim(true),
	title:  tcell.StyleDefault.Bold(true),
	good:   tcell.StyleDefault.Foreground(color.Green),
	warned: tcell.StyleDefault.Foreground(color.Yellow),
	bad:    tcell.StyleDefault.Foreground(color.Red).Bold(true),
	first:  tcell.StyleDefault.Foreground(color.Teal),
	second: tcell.StyleDefault.Foreground(color.Green),
}

// run shows m on the terminal until a key ends it or ctx is done.
func (m *topModel) run(ctx context.Context) error {
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("the terminal cannot be used: %w", err), Remedy: "Use --lines."}
	}
	defer screen.Fini()
	return m.loop(ctx, screen)
}

// loop shows m on a screen. While m is paused, it takes no samples.
func (m *topModel) loop(ctx context.Context, screen tcell.Screen) error {
	for {
		samples, stop := m.sample(ctx)
		goOn := m.follow(ctx, screen, samples)
		stop()
		if !goOn || ctx.Err() != nil {
			return nil
		}
	}
}

// sample takes samples at the interval of m until stop is called, which waits for the end of it.
func (m *topModel) sample(ctx context.Context) (samples chan sample, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	samples, ended := make(chan sample), make(chan struct{})
	point, interval := m.point, m.interval
	if m.paused {
		return samples, cancel
	}
	go func() {
		defer close(ended)
		defer panics.Contain()
		watch(ctx, point, interval, func(s sample) error { // ends when ctx is done
			select {
			case samples <- s:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	return samples, func() {
		cancel()
		<-ended
	}
}

// follow shows samples and handles keys, until top is to end or samples are to be taken in another way.
func (m *topModel) follow(ctx context.Context, screen tcell.Screen, samples chan sample) (goOn bool) {
	paused, interval := m.paused, m.interval
	for {
		size, rows := m.draw(screen)
		select {
		case <-ctx.Done():
			return false
		case s := <-samples:
			m.add(s)
		case e := <-screen.EventQ():
			switch e := e.(type) {
			case nil: // the terminal is gone
				return false
			case *tcell.EventResize:
				screen.Sync()
			case *tcell.EventKey:
				if !m.key(e, size, rows) {
					return false
				}
				if m.paused != paused || m.interval != interval {
					return true
				}
			}
		}
	}
}

// draw draws m. It returns the number of rows that are shown of the view, and those that it has.
func (m *topModel) draw(screen tcell.Screen) (size, rows int) {
	width, height := screen.Size()
	g := blocks
	if screen.CharacterSet() != "UTF-8" {
		g = ascii
	}
	screen.Clear()
	head := m.head()
	var view []row
	if !m.now.at.IsZero() {
		view = topViews[m.view].rows(m, g, width)
	}
	size, rows = max(1, height-len(head)-1), len(view)
	m.scroll = max(0, min(m.scroll, rows-size))
	for y, r := range head {
		drawRow(screen, y, r)
	}
	for y, r := range view[m.scroll:min(rows, m.scroll+size)] {
		drawRow(screen, len(head)+y, r)
	}
	drawRow(screen, height-1, m.foot(rows-size-m.scroll))
	screen.Show()
	return size, rows
}

// drawRow draws a row. What is beyond the screen is not shown.
func drawRow(screen tcell.Screen, y int, r row) {
	x := 0
	for _, s := range r {
		for rest := s.text; rest != ""; {
			var width int
			rest, width = screen.Put(x, y, rest, styles[s.tone])
			if width == 0 {
				break
			}
			x += width
		}
	}
}
