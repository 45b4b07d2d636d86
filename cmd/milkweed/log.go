package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A daemonLog is the log of a daemon.
type daemonLog struct {
	*slog.Logger
	File *os.File // the log file; nil if there is none

	console slog.LevelVar // the minimum level for the standard error
	recent  recentWarnings
	level   slog.LevelVar // that for the log file
	lines   []*lineWriter // to the standard error, and to the log file if there is one
}

// silent is a level above all others.
const silent = slog.Level(math.MaxInt)

// openLog opens the log. All messages go to the log file. In the foreground without a log file,
// they go to stderr. Warnings and errors also go to stderr in all cases, until detach.
func openLog(c config.Log, foreground bool, stderr io.Writer) (*daemonLog, error) {
	l := &daemonLog{}
	l.level.Set(c.Level)
	l.console.Set(max(c.Level, slog.LevelWarn))
	if foreground && c.File == "" {
		l.console.Set(c.Level)
	}
	handlers := []slog.Handler{l.handler(stderr, c.Format, &l.console), l.recent.handler()}
	if c.File != "" {
		f, err := openLogFile(c.File)
		if err != nil {
			return nil, &exit.Error{
				Code:   exit.Usage,
				Err:    fmt.Errorf("log.file: %w", err),
				Remedy: "Set it to a file that this user may write, or remove it.",
			}
		}
		l.File = f
		handlers = append(handlers, l.handler(f, c.Format, &l.level))
	}
	l.Logger = slog.New(slog.NewMultiHandler(handlers...))
	return l, nil
}

// The bounds on how long the log may take to be opened, and to be written at the end of the process.
const (
	openLogTime  = 20 * time.Second
	writeLogTime = time.Second
)

// openLogFile opens a log file, and makes it if there is none.
func openLogFile(path string) (*os.File, error) {
	opened := make(chan *os.File, 1)
	err := atMost(openLogTime, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
		opened <- f
		return err
	})
	switch {
	case errors.Is(err, errLeftBehind):
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("its disk does not answer")}
	case err != nil:
		return nil, err
	}
	return <-opened, nil
}

// defaultLog returns the path of the log of a daemon in the background whose configuration has
// no log.file. Each dataset has its own file, which this user may write, in a directory that defaultLog makes.
func defaultLog(source string) (string, error) {
	dir := config.StateFolder()
	if dir == "" {
		return "", errors.New("there is neither $XDG_STATE_HOME nor a home directory")
	}
	path := filepath.Join(dir, config.DatasetID(source)+".log")
	err := atMost(openLogTime, func() error { return os.MkdirAll(dir, 0o700) })
	if err == nil {
		var f *os.File
		if f, err = openLogFile(path); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return "", err
	}
	return path, nil
}

// detach stops writing to stderr, because the command that started the daemon returns.
func (l *daemonLog) detach() {
	l.console.Set(silent)
	l.flush()
}

// flush waits until all messages are written, unless that takes long.
func (l *daemonLog) flush() {
	for _, w := range l.lines {
		w.flush(writeLogTime)
	}
}

// lost returns how many messages could not be written, to where the log is.
func (l *daemonLog) lost() int64 { return l.lines[len(l.lines)-1].lost.Load() }

// setLevel changes the minimum level of the log. Without a file, that is the standard error.
func (l *daemonLog) setLevel(level slog.Level) {
	l.level.Set(level)
	if l.File == nil && l.console.Level() != silent {
		l.console.Set(level)
	}
}

func (l *daemonLog) close() {
	l.flush()
	if l.File != nil {
		l.File.Close()
	}
}

// handler returns a handler that writes to a file.
func (l *daemonLog) handler(to io.Writer, format string, level slog.Leveler) slog.Handler {
	w := &lineWriter{to: to}
	w.report = func(n int64) {
		if w == l.lines[len(l.lines)-1] { // others are not the log
			l.Warn("messages of the log were lost", "count", n)
		}
	}
	l.lines = append(l.lines, w)
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}
