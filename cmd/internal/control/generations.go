package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/placement"
)

// Generations are those of the dataset of a mount. GET /v1/generations returns them.
type Generations struct {
	Current string       `json:"current"` // the one that the mount shows; "": the source has none
	Linked  string       `json:"linked"`  // the one that the link of the source names now; "": unknown, or it is no link
	All     []Generation `json:"generations"`
}

// A Generation is a generation that the source or a tier has.
type Generation struct {
	Name     string   `json:"name"`
	Current  bool     `json:"current"`
	Linked   bool     `json:"linked"`
	AtSource bool     `json:"at_source"` // the source has it
	Dropping bool     `json:"dropping"`  // its copies go when no file of it is open
	Copies   []Copies `json:"copies"`    // by tier, the fastest first; the order is that of the tiers in Status
}

// Copies are copies in one tier.
type Copies struct {
	Tier  string `json:"tier"`
	Files int64  `json:"files"`
	Bytes int64  `json:"bytes"` // of room
}

// A SwitchRequest is the body of POST /v1/generations/switch.
type SwitchRequest struct {
	Generation string `json:"generation"`
	Keep       bool   `json:"keep,omitempty"`      // the copies of the other generation stay
	WhenIdle   bool   `json:"when_idle,omitempty"` // the switch waits until no process uses the mount
}

// Switched is the state of a switch, or its result.
type Switched struct {
	From   string          `json:"from"`
	To     string          `json:"to"`
	Done   bool            `json:"done"`
	Linked string          `json:"linked,omitempty"` // as in Generations, when it is done
	Users  []procs.Process `json:"users,omitempty"`  // that a switch with WhenIdle waits for
}

// A PrepareRequest is the body of POST /v1/generations/prepare.
type PrepareRequest struct {
	Generation string `json:"generation"`
	TrustMtime bool   `json:"trust_mtime,omitempty"` // as in placement.PrepareOptions
	Partial    bool   `json:"partial,omitempty"`     // as in placement.PrepareOptions
}

// Prepared is the state of the preparation of a generation, or its result, as in
// placement.PrepareReport.
type Prepared struct {
	Generation string `json:"generation"`
	Listing    bool   `json:"listing,omitempty"` // more files may be found
	Found      Amount `json:"found"`
	Present    Amount `json:"present"`
	Shared     Amount `json:"shared"`
	Copied     Amount `json:"copied"`
	Skipped    Amount `json:"skipped"`
	Elsewhere  Amount `json:"elsewhere"`
	Failed     Amount `json:"failed"`
	NeedBytes  int64  `json:"need_bytes"`
	RoomBytes  int64  `json:"room_bytes"`

	Errors          []FileError `json:"errors,omitempty"`           // of the first files that failed
	FilesMismatched int64       `json:"files_mismatched,omitempty"` // as in Progress
}

// An Amount is a number of files, and the sum of their sizes.
type Amount struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// A DropRequest is the body of POST /v1/generations/drop.
type DropRequest struct {
	Generation string `json:"generation"`
}

// getGenerations serves GET /v1/generations.
func (s *Server) getGenerations(w http.ResponseWriter, r *http.Request) {
	g, err := s.Daemon.Generations(r.Context())
	if err != nil {
		respondError(w, err)
		return
	}
	respond(w, g)
}

// switchGeneration serves POST /v1/generations/switch.
func (s *Server) switchGeneration(w http.ResponseWriter, r *http.Request) {
	var req SwitchRequest
	if decode(w, r, &req) {
		stream(w, r, Switched{To: req.Generation}, func(ctx context.Context, progress func(Switched)) error {
			return s.Daemon.Switch(ctx, req, progress)
		})
	}
}

// prepareGeneration serves POST /v1/generations/prepare.
func (s *Server) prepareGeneration(w http.ResponseWriter, r *http.Request) {
	var req PrepareRequest
	if decode(w, r, &req) {
		stream(w, r, Prepared{Generation: req.Generation, Listing: true}, func(ctx context.Context, progress func(Prepared)) error {
			return s.Daemon.Prepare(ctx, req, progress)
		})
	}
}

// dropGeneration serves POST /v1/generations/drop.
func (s *Server) dropGeneration(w http.ResponseWriter, r *http.Request) {
	var req DropRequest
	if decode(w, r, &req) {
		stream(w, r, placement.DropReport{}, func(ctx context.Context, progress func(placement.DropReport)) error {
			return s.Daemon.DropGeneration(ctx, req.Generation, progress)
		})
	}
}

// decode decodes the body of a request. If that fails, it responds with an error and reports false.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(r.Body) // to its end: before it, net/http does not detect a disconnect
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		respondError(w, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("request: %w", err)})
	}
	return err == nil
}

// Generations returns the generations of the dataset.
func (c *Client) Generations(ctx context.Context) (g Generations, err error) {
	body, err := c.getWithin(ctx, generationsTimeout, "/v1/generations")
	if err == nil {
		err = json.Unmarshal(body, &g)
	}
	return g, err
}

// Switch makes another generation the current one. It calls progress from time to time. When ctx is
// done before the switch, there is none.
func (c *Client) Switch(ctx context.Context, req SwitchRequest, progress func(Switched)) (Switched, error) {
	return post(ctx, c, "/v1/generations/switch", req, "the switch", "", progress)
}

// Prepare fills the tiers with the files of a generation. It calls progress from time to time, and
// returns the last Prepared. When ctx is done, it ends. Copies that were complete stay.
func (c *Client) Prepare(ctx context.Context, req PrepareRequest, progress func(Prepared)) (Prepared, error) {
	return post(ctx, c, "/v1/generations/prepare", req, "the preparation", "Run it again; complete copies stay. ", progress)
}

// DropGeneration removes the copies of a generation that is not the current one. It calls progress from
// time to time, and returns the last report.
func (c *Client) DropGeneration(ctx context.Context, generation string, progress func(placement.DropReport)) (placement.DropReport, error) {
	return post(ctx, c, "/v1/generations/drop", DropRequest{generation}, "the removal of copies", "", progress)
}
