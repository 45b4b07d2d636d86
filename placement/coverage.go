package placement

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Coverage says which files of the dataset have a copy on this node, and so whether another epoch would read
// content from the source. A copy counts if its tier is not down. An empty file needs none.
type Coverage struct {
	Complete       bool `json:"complete" metric:"dataset_complete" help:"Whether every name of the dataset is known and every file has a copy in a tier: an epoch over the dataset reads no content from the source."`
	OpenedComplete bool `json:"opened_complete" metric:"opened_complete" help:"Whether every file that was opened since the daemon started has a copy in a tier: another epoch over these files reads no content from the source. False if none was opened."`

	Files       int64 `json:"files" help:"Files of the dataset that are known."`
	Bytes       int64 `json:"files_bytes" help:"Sizes of these files."`
	CopiedFiles int64 `json:"copied_files" metric:"copied_files" help:"Known files of the dataset that have a copy, or are empty."`
	CopiedBytes int64 `json:"copied_bytes" metric:"copied_bytes" help:"Sizes of these files."`

	Opened        int64 `json:"opened" help:"Known files that were opened since the daemon started, and are not empty."`
	OpenedMissing int64 `json:"opened_without_copy" help:"Those of them that have no copy."`
	Recent        int64 `json:"changed_recently" help:"Files without a copy that were opened, and are not copied yet because they changed recently."`
	NoRoom        int64 `json:"no_room" help:"Files without a copy for which no tier has room now."`

	UnlistedDirs int64 `json:"unlisted_directories" help:"Known directories of the dataset that were not listed yet: the names in them are not all known."`
	UnknownNames int64 `json:"unknown_names" help:"Names that were listed without attributes, which may be files."`
}

// NamesKnown reports whether all names of the dataset are known.
func (c *Coverage) NamesKnown() bool { return c.UnlistedDirs == 0 && c.UnknownNames == 0 }

// coverageShare bounds the time that is spent on counting: after a pass that took t, the result is used
// for coverageShare·t.
const coverageShare = 50

// A survey holds the last result of Coverage.
type survey struct {
	mu       panics.Mutex // guards the following, and is held during a pass
	until    time.Time
	coverage Coverage
}

// Coverage returns the Coverage now. It asks neither the source nor a tier. With many files the result may be
// some seconds old.
func (h *Handler) Coverage() Coverage {
	h.survey.mu.Lock()
	defer h.survey.mu.Unlock()
	began := time.Now()
	if began.Before(h.survey.until) {
		return h.survey.coverage
	}
	h.survey.coverage = h.countCoverage()
	ended := time.Now()
	h.survey.until = ended.Add(coverageShare * ended.Sub(began))
	return h.survey.coverage
}

// countCoverage counts the entries.
func (h *Handler) countCoverage() (c Coverage) {
	var down [tiers.MaxTiers + 1]bool // by level
	for _, t := range h.levels.Tiers() {
		down[t.Level()] = t.Stats().Health == tiers.Down
	}
	local := func(e *metadata.Entry) bool {
		l := e.Level()
		return l != tiers.AtSource && !down[l]
	}
	for next := uint64(1); next != 0; {
		next = h.names.Visit(next, censusStep, func(e *metadata.Entry) {
			switch {
			case !h.names.IsShown(e):
			case e.IsDir():
				if !h.names.IsListed(e) {
					c.UnlistedDirs++
				}
			case !mayBeFile(e):
			case e.Unknown():
				c.UnknownNames++
			default:
				h.cover(&c, e, local)
			}
		})
	}
	c.Complete = c.NamesKnown() && c.CopiedFiles == c.Files
	c.OpenedComplete = c.Opened > 0 && c.OpenedMissing == 0
	return c
}

// cover counts a file whose attributes are known. local reports whether an entry has a copy that can be read.
func (h *Handler) cover(c *Coverage, e *metadata.Entry, local func(*metadata.Entry) bool) {
	c.Files++
	c.Bytes += e.Size()
	has := local(e) || e.Size() == 0 || h.hasAllPieces(e, local)
	if has {
		c.CopiedFiles++
		c.CopiedBytes += e.Size()
	}
	if h.usage.wasOpened(e) {
		c.Opened++
		if !has {
			c.OpenedMissing++
		}
	}
	if has {
		return
	}
	if _, recently := h.ChangedRecently(e); recently {
		c.Recent++
	} else if h.full(e.Size()) {
		c.NoRoom++
	}
}

// hasAllPieces reports whether e is divided into pieces that all have a copy.
func (h *Handler) hasAllPieces(e *metadata.Entry, local func(*metadata.Entry) bool) bool {
	if !h.names.HasPieces(e) {
		return false
	}
	pieces := h.names.CachedPieces(e)
	for _, p := range pieces {
		if !local(p) {
			return false
		}
	}
	return len(pieces) > 0
}
