package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A TraceFilter selects the operations that a trace shows.
type TraceFilter struct {
	Glob string        // in the syntax of path.Match; see Matches. "": every path
	Slow time.Duration // operations that took less are not shown
}

// ParseTraceFilter returns the filter of a request or of a command line. The error is an *exit.Error.
func ParseTraceFilter(glob, slow string) (TraceFilter, error) {
	f := TraceFilter{Glob: glob}
	if _, err := path.Match(glob, ""); err != nil {
		return f, &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%q is not a pattern for paths: %w", glob, err),
			Remedy: `Use a pattern such as '*.jpg' or 'train/*/*.jpg', with a \ before a literal [.`,
		}
	}
	if slow == "" {
		return f, nil
	}
	var err error
	if f.Slow, err = time.ParseDuration(slow); err != nil || f.Slow < 0 {
		return f, &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%q is not a duration from 0 on", slow), Remedy: "Use a duration such as 10ms.",
		}
	}
	return f, nil
}

// Matches reports whether the filter shows a path, which is relative to the mount point. A pattern without a
// slash is compared with the last element, and any other with the whole path. No wildcard matches a slash.
func (f TraceFilter) Matches(name string) bool {
	if f.Glob == "" {
		return true
	}
	if !strings.Contains(f.Glob, "/") {
		name = path.Base(name)
	}
	ok, _ := path.Match(f.Glob, name) // ParseTraceFilter has checked it
	return ok
}

// A TraceLine is one line of the response to GET /v1/trace. The first has only the Mode. One with Dropped
// has nothing else. The others are operations.
type TraceLine struct {
	Mode    string `json:"mode,omitempty"`    // of the mount
	Dropped int64  `json:"dropped,omitempty"` // operations since the last such line that were not sent

	Time    time.Time `json:"time,omitzero"`     // when the operation began
	Op      string    `json:"op,omitempty"`      // open or read
	Level   string    `json:"level,omitempty"`   // the name of a tier, fill, source or peers; "-": none
	Seconds float64   `json:"seconds,omitempty"` // how long it took
	Cause   string    `json:"cause,omitempty"`   // of the longest wait: latency, bandwidth, fill, tier or peers; "-": there was none
	Offset  *int64    `json:"offset,omitempty"`  // of a read; nil if it was spliced
	Size    *int64    `json:"size,omitempty"`    // of a read: the bytes read; of an open: the size of the file
	Failed  bool      `json:"failed,omitempty"`  // it returned an error
	Path    string    `json:"path,omitempty"`    // relative to the mount point
}

// trace responds with a stream of TraceLines. A client that does not read one within writeTimeout is
// disconnected.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	filter, err := ParseTraceFilter(q.Get("path"), q.Get("slow"))
	if err != nil {
		respondError(w, err)
		return
	}
	begun := false
	err = s.Daemon.Trace(r.Context(), filter, func(l TraceLine) error {
		if !begun {
			w.Header().Set("Content-Type", "application/jsonl")
			begun = true
		}
		return send(w, l)
	})
	if !begun && err != nil {
		respondError(w, err)
	}
}

// Trace calls show with the lines of a trace until show returns an error, which Trace returns, or ctx is done.
// If the daemon ends, the error has the code NotMounted.
func (c *Client) Trace(ctx context.Context, filter TraceFilter, show func(TraceLine) error) error {
	query := url.Values{"path": {filter.Glob}, "slow": {filter.Slow.String()}}
	resp, err := c.do(ctx, http.MethodGet, "/v1/trace?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var l TraceLine
		if err := lines.Decode(&l); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &exit.Error{
				Code: exit.NotMounted, Err: fmt.Errorf("the daemon of %s ended the trace: %w", c.mountPoint, err),
				Remedy: "If the daemon has ended, its log has the reason. It also ends a trace whose output is not read for 30 seconds.",
			}
		}
		if err := show(l); err != nil {
			return err
		}
	}
}
