package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Plan tells the daemon the order in which a stream will open files in an epoch, as a job does: it
// finds the control socket by an extended attribute of the mount. lead is the number of files that
// the stream requests before they are used. Names are relative to the mount point.
func (m *Mount) Plan(ctx context.Context, stream string, epoch, lead int, names []string) error {
	socket := make([]byte, unix.PathMax)
	n, err := unix.Getxattr(m.Point, "user.milkweed.socket", socket)
	if err != nil {
		return fmt.Errorf("control socket of %s: %w", m.Point, err)
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", string(socket[:n]))
		},
	}}
	query := url.Values{"stream": {stream}, "epoch": {strconv.Itoa(epoch)}, "lead": {strconv.Itoa(lead)}}
	body := strings.NewReader(strings.Join(names, "\x00") + "\x00")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://milkweed/v1/plan?"+query.Encode(), body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var result struct{ Accepted int }
	err = json.NewDecoder(response.Body).Decode(&result)
	if response.StatusCode != http.StatusOK || result.Accepted != len(names) {
		return cmp.Or(err, fmt.Errorf("plan: %s, %d of %d files accepted", response.Status, result.Accepted, len(names)))
	}
	return err
}
