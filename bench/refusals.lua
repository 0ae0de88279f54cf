-- wrk: a `response` function that tells the first two requests of a thread which were not answered by the status that was meant.
return function(meant)
  local refused = 0
  return function(status, _, body)
    if status ~= meant then
      refused = refused + 1
      if refused <= 2 then print("refused: " .. status .. " " .. body) end
    end
  end
end
