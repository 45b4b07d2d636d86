package placement

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Coverage says which files of the dataset have a copy on this node, and so whether another epoch
// would read content from the source. A copy counts if its tier is not down. An empty file needs none,
// and one that is copied in pieces has a copy when all of them have.
type Coverage struct {
	Complete       bool `json:"complete" metric:"dataset_complete" help:"Whether every name of the dataset is known and every file has a copy in a tier: another epoch reads no content from the source."`
	OpenedComplete bool `json:"opened_complete" metric:"opened_complete" help:"Whether every file that was opened since the daemon started has a copy in a tier: another epoch over these files reads no content from the source. False if none was opened."`

	Files       int64 `json:"files" metric:"known_files" help:"Regular files of the dataset whose attributes are known. That is the whole dataset when all of its directories were listed."`
	Bytes       int64 `json:"files_bytes" metric:"known_bytes" help:"Sizes of these files."`
	CopiedFiles int64 `json:"copied_files" metric:"copied_files" help:"Those of these files that have a copy in a tier, or are empty."`
	CopiedBytes int64 `json:"copied_bytes" metric:"copied_bytes" help:"Bytes of the dataset that have a copy in a tier."`

	OpenedFiles   int64 `json:"opened_files" help:"Known files that were opened since the daemon started, and are not empty."`
	OpenedBytes   int64 `json:"opened_files_bytes" help:"Sizes of these files."`
	OpenedCopied  int64 `json:"opened_files_copied_bytes" help:"Bytes of these files that have a copy in a tier."`
	OpenedMissing int64 `json:"opened_files_without_copy" help:"Those of these files that have no copy."`

	UnopenedFiles int64 `json:"unopened_files" metric:"unopened_files" help:"Known files that were copied ahead since the daemon started, have copies, and were never opened by a reader of this node."`
	UnopenedBytes int64 `json:"unopened_bytes" metric:"unopened_bytes" help:"Bytes of these files that have a copy in a tier."`

	UnlistedDirs int64 `json:"unlisted_directories" help:"Known directories of the dataset that were not listed yet: not all names in them are known."`
	DeniedDirs   int64 `json:"denied_directories" help:"Known directories of the dataset that the source does not let the daemon list: the names in them are not known."`
	UnknownNames int64 `json:"unknown_names" help:"Names that were listed without attributes, and may be files."`
	UnknownFiles int64 `json:"unknown_files" help:"Files that are copied in pieces, of which it is not known yet which have copies: they were not opened since the daemon started."`
}

// NamesKnown reports whether all files of the dataset are known, and whether they have copies.
func (c *Coverage) NamesKnown() bool {
	return c.UnlistedDirs == 0 && c.DeniedDirs == 0 && c.UnknownNames == 0 && c.UnknownFiles == 0
}

// Missing returns the number of known files without a copy.
func (c *Coverage) Missing() int64 { return c.Files - c.CopiedFiles - c.UnknownFiles }

// A Survey counts the Coverage of a handler. Its methods may be called concurrently.
type Survey struct {
	handler *Handler

	mu    panics.Mutex // guards the following, and is held during a pass
	until time.Time    // last is returned until then
	last  Coverage
}

// NewSurvey returns a Survey of h.
func NewSurvey(h *Handler) *Survey { return &Survey{handler: h} }

// surveyShare bounds the time that surveys take, of one core: after a pass that took t, its result is
// returned for surveyShare·t.
const surveyShare = 10

// Coverage returns the Coverage. It takes a pass over all entries, and asks neither the source nor a
// tier. With millions of files, the result may be some seconds old, but not older than the last Forget.
func (s *Survey) Coverage() Coverage {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if began.Before(s.until) {
		return s.last
	}
	s.last = s.count()
	ended := time.Now()
	s.until = ended.Add(surveyShare * ended.Sub(began))
	return s.last
}

// Forget makes the next call of Coverage count anew. What has changed many copies calls it.
func (s *Survey) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Time{}
}

// count makes a pass.
func (s *Survey) count() (c Coverage) {
	h := s.handler
	var usable [tiers.MaxTiers + 1]bool // by level
	for _, t := range h.levels.Tiers() {
		usable[t.Level()] = t.Stats().Health != tiers.Down
	}
	for next := uint64(1); next != 0; {
		next = h.names.Visit(next, censusStep, func(e *metadata.Entry) {
			switch {
			case !h.names.IsShown(e):
			case e.IsDir():
				switch {
				case h.names.IsListed(e):
				case h.names.IsDenied(e):
					c.DeniedDirs++
				default:
					c.UnlistedDirs++
				}
			case !mayBeFile(e):
			case e.Unknown():
				c.UnknownNames++
			default:
				copied, known := h.copiedBytes(e, &usable)
				c.add(e, copied, known)
			}
		})
	}
	c.Complete = c.NamesKnown() && c.CopiedFiles == c.Files
	c.OpenedComplete = c.OpenedFiles > 0 && c.OpenedMissing == 0
	return c
}

// add counts a file, some bytes of which have copies. If that is not known, the bytes are those that are.
func (c *Coverage) add(e *metadata.Entry, copied int64, known bool) {
	c.Files++
	c.Bytes += e.Size()
	c.CopiedBytes += copied
	switch {
	case !known:
		c.UnknownFiles++
	case copied == e.Size():
		c.CopiedFiles++
	}
	switch {
	case e.WasOpened():
		c.OpenedFiles++
		c.OpenedBytes += e.Size()
		c.OpenedCopied += copied
		if copied < e.Size() {
			c.OpenedMissing++
		}
	case e.WasPrefetched() && copied > 0:
		c.UnopenedFiles++
		c.UnopenedBytes += copied
	}
}

// copiedBytes returns how many bytes of a file have copies on usable levels, if that is known.
func (h *Handler) copiedBytes(e *metadata.Entry, usable *[tiers.MaxTiers + 1]bool) (n int64, known bool) {
	if usable[e.Level()] {
		return e.Size(), true
	}
	if !h.names.HasPieces(e) {
		return 0, true
	}
	pieces := h.names.CachedPieces(e)
	for _, p := range pieces {
		if usable[p.Level()] {
			n += p.Size()
		}
	}
	return n, pieces != nil || e.Level() != tiers.AtSource
}
