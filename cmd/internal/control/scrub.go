package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/placement"
)

// A ScrubRequest is the body of POST /v1/scrub.
type ScrubRequest struct {
	Name       []byte `json:"name"`                    // directory or file to verify, in the form of drivers.ValidName; "." is all
	Rate       int64  `json:"rate_bytes_per_second"`   // 0: no limit
	Background bool   `json:"in_background,omitempty"` // the scrub goes on when the client has disconnected
}

// A ScrubEvent is one line of the response to POST /v1/scrub.
type ScrubEvent = Event[placement.ScrubReport]

// scrub serves POST /v1/scrub.
func (s *Server) scrub(w http.ResponseWriter, r *http.Request) {
	var req ScrubRequest
	body, err := io.ReadAll(r.Body) // to its end: before it, net/http does not detect a disconnect
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	switch {
	case err != nil:
		respondError(w, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("scrub request: %w", err)})
		return
	case !drivers.ValidName(string(req.Name)):
		respondError(w, badName(string(req.Name)))
		return
	case req.Rate < 0:
		respondError(w, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("scrub request: the rate %d is negative", req.Rate)})
		return
	}
	if req.Background {
		if err := s.Daemon.StartScrub(req); err != nil {
			respondError(w, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	stream(w, r, placement.ScrubReport{Path: string(req.Name)}, func(ctx context.Context, progress func(placement.ScrubReport)) error {
		return s.Daemon.Scrub(ctx, req, progress)
	})
}

// Scrub verifies copies. It calls progress from time to time, and returns the last report. When
// ctx is done, the scrub ends. Scrub ignores Background.
func (c *Client) Scrub(ctx context.Context, req ScrubRequest, progress func(placement.ScrubReport)) (placement.ScrubReport, error) {
	req.Background = false
	return post(ctx, c, "/v1/scrub", req, "the scrub", "", progress)
}

// StartScrub starts a scrub in the background, and does not wait for its end.
func (c *Client) StartScrub(ctx context.Context, req ScrubRequest) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	req.Background = true
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodPost, "/v1/scrub", body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
