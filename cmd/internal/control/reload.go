package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// A Reloaded is the result of a reload.
type Reloaded struct {
	Changed []config.Change `json:"changed"` // that are in effect, or would be
	Refused []Refusal       `json:"refused"` // that are not
}

// A Refusal is a change that was not applied.
type Refusal struct {
	config.Change
	Reason string `json:"reason"`
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	result, err := s.Daemon.Reload(r.Context(), r.URL.Query().Get("dry-run") == "true")
	if err != nil {
		respondError(w, err)
		return
	}
	respond(w, result)
}

// Reload makes the daemon read its configuration again. With dryRun, it returns what would change.
func (c *Client) Reload(ctx context.Context, dryRun bool) (Reloaded, error) {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	var r Reloaded
	resp, err := c.do(ctx, http.MethodPost, fmt.Sprint("/v1/reload?dry-run=", dryRun), nil)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&r)
}
