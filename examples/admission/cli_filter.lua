-- Slurm: hold every sbatch script against its request before it is queued.
--
-- Install as cli_filter.lua beside slurm.conf, with CliFilterPlugins=lua there, and name the cluster
-- profile below. It runs on the machine of the user, never in slurmctld. A job that is no training
-- script (exit code 2) is let through; so is one that foreshard is not installed for. --nodes and
-- --gpus-per-node count wherever they are given; a --time that is typed beside sbatch is not seen.

local CLUSTER = os.getenv("FORESHARD_CLUSTER") or "dgx-h100"

local function quoted(text)
  return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

function slurm_cli_pre_submit(options, offset)
  local script = options["argv"][1] -- from 1: _setup_stringarray in Slurm's cli_filter_lua.c
  if script == nil then
    return slurm.SUCCESS
  end
  local command = "foreshard admit " .. quoted(script) .. " --cluster " .. quoted(CLUSTER)
  local nodes = tonumber(string.match(options["nodes"] or "", "^%d+"))
  local each = tonumber(string.match(options["gpus-per-node"] or "", "%d+$"))
  if nodes and each then
    command = command .. string.format(" --gpus %d", nodes * each)
  end
  local pipe = io.popen(command .. " 2>&1; echo code=$?", "r")
  if pipe == nil then
    return slurm.SUCCESS
  end
  local text = pipe:read("*a")
  pipe:close()
  local code = tonumber(string.match(text, "code=(%d+)%s*$"))
  local said = string.gsub(text, "code=%d+%s*$", "")
  if code == 1 then
    slurm.log_error("%s", said)
    slurm.log_error("refused: change the request, or ask the administrators")
    return slurm.ERROR
  elseif code == 3 then
    slurm.log_info("%s", said)
  end
  return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
