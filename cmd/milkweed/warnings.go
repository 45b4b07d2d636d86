package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// maxWarnings bounds recentWarnings.
const maxWarnings = 16

// recentWarnings keeps the last different warnings and errors of a log, for the status. It keeps
// messages, which are constants of the program, and the names of tiers, but no other attribute:
// these may have names of files. Its methods may be called concurrently.
type recentWarnings struct {
	mu  sync.Mutex // guards the following
	all []control.Warning
}

// add counts w as one more of its kind, which becomes the latest.
func (r *recentWarnings) add(w control.Warning) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Count = 1
	i := slices.IndexFunc(r.all, func(o control.Warning) bool {
		return o.Level == w.Level && o.Message == w.Message && o.Tier == w.Tier
	})
	if i < 0 && len(r.all) == maxWarnings {
		i = 0
	} else if i >= 0 {
		w.Count += r.all[i].Count
	}
	if i >= 0 {
		r.all = slices.Delete(r.all, i, i+1)
	}
	r.all = append(r.all, w)
}

// list returns the warnings, the latest last.
func (r *recentWarnings) list() []control.Warning {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Warning{}, r.all...)
}

// handler returns a handler that adds records to r.
func (r *recentWarnings) handler() slog.Handler { return warningHandler{recent: r} }

// A warningHandler adds the records of a logger to recentWarnings.
type warningHandler struct {
	recent *recentWarnings
	tier   string // an attribute of the logger
}

// Enabled implements slog.Handler.
func (h warningHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (h warningHandler) Handle(_ context.Context, record slog.Record) error {
	w := control.Warning{Time: record.Time, Level: record.Level.String(), Message: record.Message, Tier: h.tier}
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == tierAttr {
			w.Tier = a.Value.String()
		}
		return true
	})
	h.recent.add(w)
	return nil
}

// tierAttr is the key of the attribute that has the name of a tier.
const tierAttr = "tier"

// WithAttrs implements slog.Handler.
func (h warningHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == tierAttr {
			h.tier = a.Value.String()
		}
	}
	return h
}

// WithGroup implements slog.Handler. No logger of this program has a group.
func (h warningHandler) WithGroup(string) slog.Handler { return h }
